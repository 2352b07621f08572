//! The extension on Flex: the body of each operation, chosen by the number format.
//!
//! In and out: as in the trait. Kernels compute f32 and bf16, burn's operations wider formats.
//! Invariant: activations of f16 are computed in f32 by the same kernels, and the result of a layer
//! is rounded to f16. They use no links between layers, which share values before rounding.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, bf16};

use super::clock::time;
use super::fused::{composed, flex as fused, planes, unlinked};
use super::memory::rounded_to_f16;
use super::single::{self, Operation};
use super::single::{SingleGradients, SingleOptions, SingleOutput, SingleSaved, Wanted};
use super::{LayerGradients, LayerOps, LayerOptions, LayerOutput, LayerSaved};

impl LayerOps for Flex {
    fn layer(
        input: FlexTensor,
        weight: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        residual: FlexTensor,
        options: LayerOptions,
    ) -> LayerOutput<Self> {
        match input.dtype() {
            DType::F32 if planes::takes(&input, &options) => {
                planes::forward(input, gamma, beta, &options)
            }
            DType::F32 => fused::forward::<f32>(input, weight, gamma, beta, residual, &options),
            DType::BF16 => fused::forward::<bf16>(input, weight, gamma, beta, residual, &options),
            DType::F16 => {
                let options = unlinked(options);
                let layer = fused::forward::<f32>(input, weight, gamma, beta, residual, &options);
                let output = rounded_to_f16(layer.output);
                // The backward pass reads the gate from the values that readers got.
                let kept_output = if fused::is_gated_by_output(&options) {
                    output.clone()
                } else {
                    layer.kept_output
                };
                LayerOutput {
                    output,
                    kept_output,
                    ..layer
                }
            }
            _ => composed::forward::<Self>(input, weight, gamma, beta, residual, options),
        }
    }

    fn layer_backward(
        saved: LayerSaved<Self>,
        output_gradient: FlexTensor,
        options: LayerOptions,
    ) -> LayerGradients<Self> {
        match saved.input.dtype() {
            DType::F32 if planes::takes(&saved.convolved, &options) => {
                planes::backward(saved, output_gradient, &options)
            }
            DType::F32 => fused::backward::<f32>(saved, output_gradient, &options),
            DType::BF16 => fused::backward::<bf16>(saved, output_gradient, &options),
            DType::F16 => {
                let options = unlinked(options);
                let gradients = fused::backward::<f32>(saved, output_gradient, &options);
                LayerGradients {
                    input: rounded_to_f16(gradients.input),
                    residual: rounded_to_f16(gradients.residual),
                    ..gradients
                }
            }
            _ => composed::backward::<Self>(saved, output_gradient, options),
        }
    }

    fn layer_inference(
        input: FlexTensor,
        weight: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        residual: FlexTensor,
        options: LayerOptions,
    ) -> FlexTensor {
        // Our kernels reject an empty batch.
        let is_empty = input.shape().num_elements() == 0;
        match input.dtype() {
            DType::F32 if !is_empty => {
                fused::inference::<f32>(input, weight, scale, shift, residual, &options)
            }
            DType::BF16 if !is_empty => {
                fused::inference::<bf16>(input, weight, scale, shift, residual, &options)
            }
            DType::F16 if !is_empty => rounded_to_f16(fused::inference::<f32>(
                input, weight, scale, shift, residual, &options,
            )),
            _ => composed::inference::<Self>(input, weight, scale, shift, residual, &options),
        }
    }

    fn single(
        input: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        options: SingleOptions,
    ) -> SingleOutput<Self> {
        let kernel = options.operation.kernel();
        time(kernel, None, || match (input.dtype(), options.operation) {
            (DType::BF16, _) => single::flex::forward::<bf16>(input, weight, bias, &options),
            (DType::F64, Operation::GlobalAverage { .. }) => {
                single::composed::forward::<Self>(input, weight, &options)
            }
            // Means are f32.
            (DType::F16, Operation::GlobalAverage { .. }) => {
                single::flex::forward::<f32>(input, weight, bias, &options)
            }
            (DType::F16, _) => {
                let single = single::flex::forward::<f32>(input, weight, bias, &options);
                SingleOutput {
                    output: rounded_to_f16(single.output),
                    ..single
                }
            }
            _ => single::flex::forward::<f32>(input, weight, bias, &options),
        })
    }

    fn single_backward(
        saved: SingleSaved<Self>,
        output_gradient: FlexTensor,
        options: SingleOptions,
        wanted: Wanted,
    ) -> SingleGradients<Self> {
        // A max pool and an average keep no input: their formats are those of the gradient and of
        // the options. A loss is f32 for any logits.
        let dtype = match options.operation {
            Operation::GlobalAverage { dtype, .. } => dtype,
            Operation::Loss(_) => FloatDType::from(saved.input.dtype()),
            _ => FloatDType::from(output_gradient.dtype()),
        };
        time(options.operation.kernel(), None, || match dtype {
            FloatDType::BF16 => {
                single::flex::backward::<bf16>(saved, output_gradient, &options, wanted)
            }
            FloatDType::F16 => {
                let gradients =
                    single::flex::backward::<f32>(saved, output_gradient, &options, wanted);
                SingleGradients {
                    input: rounded_to_f16(gradients.input),
                    ..gradients
                }
            }
            FloatDType::F64 if matches!(options.operation, Operation::GlobalAverage { .. }) => {
                single::composed::backward::<Self>(saved, output_gradient, &options)
            }
            _ => single::flex::backward::<f32>(saved, output_gradient, &options, wanted),
        })
    }
}
