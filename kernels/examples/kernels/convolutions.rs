//! The passes of a convolution and the packing of its weights.
//!
//! In: a shape. Out: a measurement of each; operations are direct convolution's, whatever the algorithm.

use kernels::conv2d::{Addend, Conv2d, Conv2dShape, Epilogue};
use kernels::{Element, Storage};

use crate::arguments::{Arguments, Dtype};
use crate::measure::Bench;
use crate::report::{Work, Yardstick};

/// Channels of an image: no training needs its gradient.
const IMAGE_CHANNELS: usize = 3;

pub(crate) fn measure<E: Element>(bench: &Bench, layer: &str, shape: Conv2dShape) {
    let Arguments { algorithm, isa, .. } = bench.arguments;
    let conv = Conv2d::new(shape, algorithm, isa, Storage::of::<E>());
    let batch = Some(shape.batch);
    let of_packing = |operation: &str, packed_len: usize, call: &mut dyn FnMut()| {
        let num_bytes = size_of::<f32>() * (shape.weight_len() + packed_len);
        let yardstick = Yardstick::Nothing;
        bench.measure(
            Work {
                layer,
                batch,
                operation,
                dtype: Dtype::F32,
                num_bytes,
                yardstick,
            },
            call,
        );
    };
    let of_pass = |operation: &str, call: &mut dyn FnMut()| {
        let activations = shape.input_len() + shape.output_len();
        let num_bytes = size_of::<E>() * activations + size_of::<f32>() * shape.weight_len();
        let yardstick = Yardstick::Peak {
            flops: shape.flops(),
        };
        bench.measure(
            Work {
                layer,
                batch,
                operation,
                dtype: Dtype::of::<E>(),
                num_bytes,
                yardstick,
            },
            call,
        );
    };
    let (x, dy) = (
        bench.values::<E>(shape.input_len()),
        bench.values::<E>(shape.output_len()),
    );
    let weights = bench.values::<f32>(shape.weight_len());
    {
        let mut packed = bench.values(conv.packed_forward_len());
        of_packing("pack forward", packed.len(), &mut || {
            conv.pack_forward(&weights, &mut packed)
        });
        let mut y = bench.values::<E>(shape.output_len());
        let mut workspace = bench.values(conv.forward_workspace_len());
        let mut moments = vec![0.0; 2 * shape.out_channels];
        of_pass("forward", &mut || {
            conv.forward(&x, &packed, &mut y, &mut workspace, Epilogue::None)
        });
        of_pass("forward with moments", &mut || {
            conv.forward(
                &x,
                &packed,
                &mut y,
                &mut workspace,
                Epilogue::Moments(&mut moments),
            );
        });
    }
    if shape.in_channels != IMAGE_CHANNELS {
        let mut packed = bench.values(conv.packed_data_gradient_len());
        of_packing("pack data gradient", packed.len(), &mut || {
            conv.pack_data_gradient(&weights, &mut packed)
        });
        let mut dx = bench.values::<E>(shape.input_len());
        let mut workspace = bench.values(conv.data_gradient_workspace_len());
        of_pass("data gradient", &mut || {
            conv.data_gradient(&dy, &packed, Addend::None, &mut dx, &mut workspace)
        });
    }
    let mut dw = bench.values(shape.weight_len());
    let mut workspace = bench.values(conv.weight_gradient_workspace_len());
    of_pass("weight gradient", &mut || {
        conv.weight_gradient(&x, &dy, &mut dw, &mut workspace)
    });
}
