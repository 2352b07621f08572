//! The extension on burn's GPU backend, by the kernels of the crate `gpu`.
//!
//! In and out: as the trait says. Invariant: an operation without a kernel is burn's.

#[cfg(all(test, feature = "flex"))]
mod tests;

use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use gpu::cube;

pub(super) use gpu::cube::{convolved, in_f32, row};

use super::fused::{convolution_by_burn, input_gradient_by_burn, weight_gradient_by_burn};
use super::{LayerOps, NormEnd, NormTable};
use crate::switches::Switches;

impl From<NormTable<CubeBackend>> for cube::Norm {
    fn from(table: NormTable<CubeBackend>) -> Self {
        Self {
            input: table.input,
            gamma: table.gamma,
            beta: table.beta,
            mean: table.mean,
            variance: table.variance,
            num_values: table.num_values,
        }
    }
}

impl From<NormEnd> for cube::NormEnd {
    fn from(end: NormEnd) -> Self {
        Self {
            epsilon: end.epsilon,
            has_residual: end.has_residual,
            rectifier: end.rectifier,
        }
    }
}

impl LayerOps for CubeBackend {
    fn norm_moments(table: CubeTensor) -> (CubeTensor, CubeTensor) {
        cube::moments(table)
    }

    fn norm_apply(saved: NormTable<Self>, residual: CubeTensor, end: NormEnd) -> CubeTensor {
        cube::apply(saved.into(), residual, end.into())
    }

    fn norm_gradient_sums(
        saved: NormTable<Self>,
        output: CubeTensor,
        dy: CubeTensor,
        end: NormEnd,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        cube::gradient_sums(saved.into(), output, dy, end.into())
    }

    fn norm_gradient_input(
        saved: NormTable<Self>,
        plain: CubeTensor,
        with_normalised: CubeTensor,
        dy: CubeTensor,
        end: NormEnd,
    ) -> CubeTensor {
        cube::gradient_input(saved.into(), plain, with_normalised, dy, end.into())
    }

    fn convolution(input: CubeTensor, weight: CubeTensor, options: ConvOptions<2>) -> CubeTensor {
        unless_switched_off(|| cube::convolve(&input, &weight, &options, false))
            .unwrap_or_else(|| convolution_by_burn::<Self>(input, weight, options))
    }

    fn input_gradient(
        input: CubeTensor,
        weight: CubeTensor,
        dy: CubeTensor,
        options: ConvOptions<2>,
    ) -> CubeTensor {
        unless_switched_off(|| cube::convolve(&dy, &weight, &options, true))
            .unwrap_or_else(|| input_gradient_by_burn::<Self>(input, weight, dy, options))
    }

    fn weight_gradient(
        input: CubeTensor,
        weight: CubeTensor,
        dy: CubeTensor,
        options: ConvOptions<2>,
    ) -> CubeTensor {
        unless_switched_off(|| cube::weight_gradient(&input, &weight.shape(), &dy, &options))
            .unwrap_or_else(|| weight_gradient_by_burn::<Self>(input, weight, dy, options))
    }

    fn overwrite(target: CubeTensor, source: CubeTensor) -> CubeTensor {
        cube::overwrite(&target, source);
        target
    }
}

fn unless_switched_off(kernel: impl FnOnce() -> Option<CubeTensor>) -> Option<CubeTensor> {
    if Switches::current().burn_convolutions {
        None
    } else {
        kernel()
    }
}
