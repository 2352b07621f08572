//! Defaults and checks of the flags of device, number format and threads.

use super::checks::{Filled, conflict, invalid, within};
use super::data::MOST_THREADS;
use super::error::ConfigError;
use super::family::{Family, ModelOption};
use crate::config::choices::{
    ConvolutionKind, CpuKind, DeviceChoice, Dtype, KernelsKind, RecomputeKind,
};
use crate::config::cli::ComputeArgs;
use kernels::simd::Isa;
use std::collections::BTreeMap;

impl ComputeArgs {
    /// These flags with their gaps filled, for a model of this family on this machine.
    ///
    /// # Errors
    /// When they contradict each other or have no effect on such a model, or this program or processor has not what they name.
    pub fn decided(mut self, family: &Family) -> Result<Self, ConfigError> {
        family.reject_inapplicable_options(&BTreeMap::from([("compute", self)]))?;
        self.fill(family.options)?;
        self.expect_offered()?;
        Ok(self)
    }

    /// Fills the gaps, and refuses what contradicts itself. What the model's family does not heed stays open.
    pub(super) fn fill(&mut self, heeded: &[ModelOption]) -> Result<(), ConfigError> {
        let heeds = |option| heeded.contains(&option);
        let device = *self.device.get_or_insert_with(DeviceChoice::preferred);
        self.input.get_or_insert(device.input());
        if heeds(ModelOption::Kernels) {
            self.kernels.get_or_insert(KernelsKind::Fused);
        }
        if heeds(ModelOption::Dtype) {
            self.dtype.get_or_insert(Dtype::F32);
        }
        if heeds(ModelOption::Convolution) {
            self.convolution.get_or_insert(ConvolutionKind::Auto);
        }
        if heeds(ModelOption::Recompute) {
            self.recompute.get_or_insert(RecomputeKind::None);
        }
        if heeds(ModelOption::Cpu) {
            self.cpu.get_or_insert(CpuKind::Auto);
        }
        if let Some(threads) = self.threads {
            within("--threads", threads, 1..=MOST_THREADS)?;
        }
        let kernels = self.kernels.unwrap_or(KernelsKind::Fused);
        if let Some(recompute) = self
            .recompute
            .filter(|recompute| *recompute != RecomputeKind::None)
        {
            self.expect_own_kernels("--recompute", &format!("{recompute} are computed again"))?;
        }
        let option = match self.dtype() {
            Dtype::F32 => return Ok(()),
            Dtype::Bf16 => "--dtype bf16",
            Dtype::F16 => "--dtype f16",
        };
        // burn's ndarray has no numbers of 16 bits.
        if kernels != KernelsKind::Fused || device == DeviceChoice::Ndarray {
            return Err(conflict(
                option,
                format!("--device {device} --kernels {kernels}"),
                "numbers of 16 bits need --device cuda or flex, and --kernels fused",
            ));
        }
        Ok(())
    }

    /// Refuses `option`, by which something `happens`, where the layers are not computed by our own kernels.
    fn expect_own_kernels(&self, option: &'static str, happens: &str) -> Result<(), ConfigError> {
        let (device, dtype) = (self.device.filled(), self.dtype());
        let kernels = self.kernels.unwrap_or(KernelsKind::Fused);
        if device == DeviceChoice::Flex && kernels == KernelsKind::Fused && dtype != Dtype::F16 {
            return Ok(());
        }
        Err(conflict(
            option,
            format!("--device {device} --kernels {kernels} --dtype {dtype}"),
            format!(
                "{happens} by our own kernels alone: --device flex, --kernels fused, --dtype f32 or bf16; or leave it out"
            ),
        ))
    }

    /// Refuses what this program or processor has not; and a convolution without effect, which checkpoints of earlier runs may have.
    pub(super) fn expect_offered(&self) -> Result<(), ConfigError> {
        if self.convolution == Some(ConvolutionKind::Direct) {
            self.expect_own_kernels("--convolution direct", "it is done")?;
        }
        let (device, built_in) = (self.device.filled(), DeviceChoice::built_in());
        if !built_in.contains(&device.backend()) {
            return Err(ConfigError::DeviceNotBuilt {
                device: device.to_string(),
                backend: device.backend(),
                built_in,
            });
        }
        instruction_set(self.cpu)?;
        Ok(())
    }

    /// Number format of activations: f32 for a model that knows no other.
    pub fn dtype(&self) -> Dtype {
        self.dtype.unwrap_or(Dtype::F32)
    }
}

/// The instruction set that `--cpu` names.
///
/// # Errors
/// When this processor does not offer it.
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
        format!(
            "an instruction set of this processor ({})",
            offered.join(", ")
        ),
        cpu,
    ))
}
