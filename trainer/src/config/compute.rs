//! The section `[compute]`: device, number format and threads.

use super::checks::{conflict, invalid, within};
use super::data::MAX_THREADS;
use super::error::ConfigError;
use super::family::{Family, ModelOption};
use crate::config::choices::{
    Activations, Convolution, CpuKind, DeviceChoice, InputKind, Kernels, Recompute,
};
use crate::config::cli::ComputeArgs;
use kernels::simd::Isa;
use serde::Serialize;
use std::collections::BTreeMap;

/// Device, number format and threads of a rank. Options that the model's family does not support
/// are absent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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

impl From<ComputeSection> for ComputeArgs {
    fn from(section: ComputeSection) -> Self {
        Self {
            device: Some(section.device),
            input: Some(section.input),
            kernels: section.kernels,
            dtype: section.dtype,
            convolution: section.convolution,
            recompute: section.recompute,
            cpu: section.cpu,
            threads: section.threads,
        }
    }
}

impl ComputeArgs {
    /// Decides this section for a model of the family on this machine.
    ///
    /// # Errors
    /// When flags contradict each other or have no effect on such a model, or this program or CPU
    /// lacks what they name.
    pub(super) fn decide_for(self, family: &Family) -> Result<ComputeSection, ConfigError> {
        let section = self.decide(family.options)?;
        let key = |section| BTreeMap::from([("compute", section)]);
        family.expect_effect(&key(self), &key(ComputeArgs::from(section)))?;
        section.expect_offered()?;
        Ok(section)
    }

    /// Applies the defaults and refuses contradictions. `supported`: options of the model's family.
    pub(super) fn decide(self, supported: &[ModelOption]) -> Result<ComputeSection, ConfigError> {
        let device = self.device.unwrap_or_else(DeviceChoice::preferred);
        let supports = |option| supported.contains(&option);
        let section = ComputeSection {
            device,
            input: self.input.unwrap_or(device.input()),
            kernels: supports(ModelOption::Kernels).then(|| self.kernels.unwrap_or(Kernels::Fused)),
            dtype: supports(ModelOption::Dtype).then(|| self.dtype.unwrap_or(Activations::F32)),
            convolution: supports(ModelOption::Convolution)
                .then(|| self.convolution.unwrap_or(Convolution::Auto)),
            recompute: supports(ModelOption::Recompute)
                .then(|| self.recompute.unwrap_or(Recompute::None)),
            cpu: supports(ModelOption::Cpu).then(|| self.cpu.unwrap_or(CpuKind::Auto)),
            threads: match self.threads {
                Some(threads) => Some(within("--threads", threads, 1..=MAX_THREADS)?),
                None => None,
            },
        };
        let recompute = section.recompute.unwrap_or(Recompute::None);
        if recompute != Recompute::None {
            section.expect_own_kernels("--recompute")?;
        }
        if section.convolution == Some(Convolution::Direct) {
            section.expect_own_kernels("--convolution direct")?;
        }
        // burn's ndarray has no numbers of 16 bits.
        if section.dtype() != Activations::F32
            && (section.kernels() != Kernels::Fused || device == DeviceChoice::Ndarray)
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
    /// Refuses `option` where Lockstep's own kernels do not compute the layers.
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

    /// Refuses a device or instruction set that this program or CPU lacks.
    pub(super) fn expect_offered(&self) -> Result<(), ConfigError> {
        let built_in = DeviceChoice::built_in();
        if !built_in.contains(&self.device.backend()) {
            return Err(ConfigError::DeviceNotBuilt {
                device: self.device.to_string(),
                backend: self.device.backend(),
                built_in,
            });
        }
        instruction_set(self.cpu)?;
        Ok(())
    }

    /// Returns the kernels of the layers.
    pub fn kernels(&self) -> Kernels {
        self.kernels.unwrap_or(Kernels::Fused)
    }

    /// Returns the number format of activations.
    pub fn dtype(&self) -> Activations {
        self.dtype.unwrap_or(Activations::F32)
    }
}

/// Returns the instruction set that `--cpu` names.
///
/// # Errors
/// When this CPU lacks it.
pub(crate) fn instruction_set(cpu: Option<CpuKind>) -> Result<Isa, ConfigError> {
    let cpu = cpu.unwrap_or(CpuKind::Auto);
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
