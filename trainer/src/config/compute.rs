//! The section `[compute]`: device, number format and threads.

use super::error::{ConfigError, conflict, invalid};
use super::family::Family;
use super::file;
use super::options::expect_ranges;
use crate::config::choices::{
    Activations, Convolution, CpuKind, DeviceChoice, InputKind, Kernels, ModelOption, Recompute,
};
use crate::config::cli::ComputeArgs;
use kernels::simd::Isa;
use layers::backend::Computation;
use serde::{Deserialize, Serialize};

/// Device, number format and threads of a rank. Options that the model's family does not support
/// are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ComputeSection {
    pub device: DeviceChoice,
    pub input: InputKind,
    pub kernels: Option<Kernels>,
    pub dtype: Option<Activations>,
    pub convolution: Option<Convolution>,
    pub recompute: Option<Recompute>,
    pub cpu: Option<CpuKind>,
    pub threads: Option<usize>,
}

impl Default for ComputeSection {
    /// Returns the preferred device of this machine, with defaults for every option of a model.
    fn default() -> Self {
        let device = DeviceChoice::preferred();
        Self {
            device,
            input: device.input(),
            kernels: None,
            dtype: None,
            convolution: None,
            recompute: None,
            cpu: None,
            threads: None,
        }
    }
}

impl ComputeArgs {
    /// Decides this section for a model of the family on this machine.
    ///
    /// # Errors
    /// If flags contradict each other or have no effect on such a model, or this program or CPU
    /// lacks a named feature.
    pub(crate) fn decide_for(self, family: &Family) -> Result<ComputeSection, ConfigError> {
        expect_ranges(&self)?;
        let section = self.decide(family.options)?;
        family.expect_effect(&self, &section)?;
        section.expect_offered()?;
        Ok(section)
    }

    /// Applies the defaults and rejects contradictions. `supported`: options of the model's family.
    pub(super) fn decide(
        mut self,
        supported: &[ModelOption],
    ) -> Result<ComputeSection, ConfigError> {
        let supports = |option| supported.contains(&option);
        let device = *self.device.get_or_insert_with(DeviceChoice::preferred);
        self.input.get_or_insert(device.input());
        self.kernels = supports(ModelOption::Kernels).then_some(self.kernels.unwrap_or_default());
        self.dtype = supports(ModelOption::Dtype).then_some(self.dtype.unwrap_or_default());
        self.convolution =
            supports(ModelOption::Convolution).then_some(self.convolution.unwrap_or_default());
        self.recompute =
            supports(ModelOption::Recompute).then_some(self.recompute.unwrap_or_default());
        self.cpu = supports(ModelOption::Cpu).then_some(self.cpu.unwrap_or_default());
        let section: ComputeSection = file::section(&self)?;
        if self.recompute.unwrap_or_default() != Recompute::None {
            section.expect_own_kernels("--recompute")?;
        }
        if self.convolution == Some(Convolution::Direct) {
            section.expect_own_kernels("--convolution direct")?;
        }
        if section.dtype() != Activations::F32
            && (section.kernels() != Kernels::Fused || !device.has_16_bits())
        {
            return Err(conflict(
                format!("--dtype {}", section.dtype()),
                format!("--device {device} --kernels {}", section.kernels()),
                "numbers of 16 bits need --device cuda or flex, and --kernels fused",
            ));
        }
        Ok(section)
    }
}

impl ComputeSection {
    /// Rejects `option` if Lockstep's own kernels do not compute the layers.
    fn expect_own_kernels(&self, option: &'static str) -> Result<(), ConfigError> {
        let device = self.device;
        let kernels = self.kernels();
        let dtype = self.dtype();
        if device == DeviceChoice::Flex && kernels == Kernels::Fused && dtype != Activations::F16 {
            return Ok(());
        }
        Err(conflict(
            option,
            format!("--device {device} --kernels {kernels} --dtype {dtype}"),
            format!(
                "it needs Lockstep's own kernels: --device flex, --kernels fused, --dtype f32 or bf16; or remove {option}"
            ),
        ))
    }

    /// Rejects a device that this program lacks.
    pub(super) fn expect_offered(&self) -> Result<(), ConfigError> {
        let built_in = DeviceChoice::built_in();
        if !built_in.contains(&self.device.backend()) {
            return Err(ConfigError(format!(
                "--device {}: this program was built without it (built in: {}); rebuild with --features {}",
                self.device,
                built_in.join(", "),
                self.device.backend()
            )));
        }
        Ok(())
    }

    /// Returns the kernels of the layers.
    pub fn kernels(&self) -> Kernels {
        self.kernels.unwrap_or_default()
    }

    /// Returns the computation of the layers.
    ///
    /// # Errors
    /// If this CPU lacks the instruction set.
    pub fn computation(&self) -> Result<Computation, ConfigError> {
        Ok(Computation {
            kernels: self.kernels(),
            convolution: self.convolution.unwrap_or_default(),
            recompute: self.recompute.unwrap_or_default(),
            isa: instruction_set(self.cpu)?,
            activations: self.dtype(),
        })
    }

    /// Returns the number format of activations.
    pub fn dtype(&self) -> Activations {
        self.dtype.unwrap_or_default()
    }
}

/// Returns the instruction set that `--cpu` names.
///
/// # Errors
/// If this CPU lacks the instruction set.
pub(crate) fn instruction_set(cpu: Option<CpuKind>) -> Result<Isa, ConfigError> {
    let cpu = cpu.unwrap_or_default();
    let isa = match cpu {
        CpuKind::Auto => Isa::detect(),
        CpuKind::Avx512 => Isa::Avx512,
        CpuKind::Avx2 => Isa::Avx2Fma,
        CpuKind::Portable => Isa::Portable,
    };
    if isa.is_available() {
        return Ok(isa);
    }
    let offered: Vec<String> = Isa::available()
        .map(|isa| format!("{isa:?}").to_lowercase())
        .collect();
    Err(invalid(
        "--cpu",
        format!("an instruction set of this CPU ({})", offered.join(", ")),
        cpu,
    ))
}
