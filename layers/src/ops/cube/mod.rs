//! The extension on burn's GPU backend, by the kernels of the crate `gpu`.
//!
//! In and out: as the trait says. Invariant: an operation without a kernel is burn's, a
//! convolution without matrix units in f32, because burn's direct kernel sums 16 bits in 16 bits.

#[cfg(all(test, feature = "flex"))]
mod tests;

use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;
use gpu::cube::{self, implicit_gemm};

pub(super) use gpu::cube::{convolved, in_f32, row};

use super::fused::{convolution_by_burn, input_gradient_by_burn, weight_gradient_by_burn};
use super::{LayerOps, NormEnd, NormTable};
use crate::ops::composed::widen;
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
        unless_switched_off(|| {
            cube::convolve(&input, &weight, &options, false)
                .or_else(|| implicit_gemm::forward(&input, &weight, &options))
        })
        .unwrap_or_else(|| {
            let dtype = input.dtype;
            let [input, weight] = [input, weight].map(widen::<Self>);
            cast(convolution_by_burn::<Self>(input, weight, options), dtype)
        })
    }

    fn input_gradient(
        input: CubeTensor,
        weight: CubeTensor,
        dy: CubeTensor,
        options: ConvOptions<2>,
    ) -> CubeTensor {
        unless_switched_off(|| {
            cube::convolve(&dy, &weight, &options, true)
                .or_else(|| implicit_gemm::input_gradient(&input.shape(), &weight, &dy, &options))
        })
        .unwrap_or_else(|| {
            let dtype = dy.dtype;
            let [weight, dy] = [weight, dy].map(widen::<Self>);
            cast(
                input_gradient_by_burn::<Self>(input, weight, dy, options),
                dtype,
            )
        })
    }

    fn weight_gradient(
        input: CubeTensor,
        weight: CubeTensor,
        dy: CubeTensor,
        options: ConvOptions<2>,
    ) -> CubeTensor {
        let shape = weight.shape();
        unless_switched_off(|| {
            cube::weight_gradient(&input, &shape, &dy, &options).or_else(|| {
                implicit_gemm::weight_gradient(&input, &shape, &dy, &options).map(widen::<Self>)
            })
        })
        .unwrap_or_else(|| {
            let [input, weight, dy] = [input, weight, dy].map(widen::<Self>);
            weight_gradient_by_burn::<Self>(input, weight, dy, options)
        })
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
