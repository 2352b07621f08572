//! Convolutions by burn's implicit matrix products on matrix units.
//!
//! In: tables `[N, H, W, C]`, a weight `[C_out, C_in, k, l]`.
//! Out: the operation's result, or `None` if the kernels do not support the shape or the device.
//! Invariant: operands are multiplied in their number format (f32 in TF32) and summed in f32.

use burn::backend::TensorMetadata;
use burn::backend::ops::{ConvOptions, FloatTensorOps};
use burn::tensor::{Shape, Slice};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::conv::{
    ConvStrategy, conv_data_backward, conv_forward_nhwc, conv_weight_backward,
};
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;

use super::{convolve, has_matrix_units};

/// Returns the output.
pub fn forward(
    input: &CubeTensor,
    weight: &CubeTensor,
    options: &ConvOptions<2>,
) -> Option<CubeTensor> {
    if !is_supported(input, options) {
        return None;
    }
    let weight = CubeBackend::float_permute(weight.clone(), &[0, 2, 3, 1]);
    conv_forward_nhwc(
        input.clone(),
        weight,
        None,
        options.clone(),
        ConvStrategy::ImplicitGemm,
    )
    .ok()
}

/// Returns the gradient of an input of shape `[N, H, W, C_in]`.
pub fn input_gradient(
    shape: &Shape,
    weight: &CubeTensor,
    dy: &CubeTensor,
    options: &ConvOptions<2>,
) -> Option<CubeTensor> {
    if !is_supported(dy, options) {
        return None;
    }
    let [images, height, width, channels] = shape.dims::<4>();
    let [_, _, kernel @ ..] = weight.shape().dims::<4>();
    // The kernels have no strides. With zeros between its values, the output's gradient is that of
    // a convolution with stride 1.
    let dense = ConvOptions {
        stride: [1, 1],
        ..options.clone()
    };
    let sides = [0, 1].map(|axis| {
        let (before, after) = options.padding[axis];
        [height, width][axis] + before + after - options.dilation[axis] * (kernel[axis] - 1)
    });
    let dy = spread(dy, sides, options.stride);
    convolve(&dy, weight, &dense, true).or_else(|| {
        let planes = CubeBackend::float_permute(dy, &[0, 3, 1, 2]);
        let shape = Shape::new([images, channels, height, width]);
        let dx = conv_data_backward(
            planes,
            weight.clone(),
            shape,
            dense,
            ConvStrategy::ImplicitGemm,
        );
        Some(CubeBackend::float_permute(dx.ok()?, &[0, 2, 3, 1]))
    })
}

/// Returns the gradient of a weight of shape `[C_out, C_in, k, l]`, in the input's number format.
pub fn weight_gradient(
    input: &CubeTensor,
    weight: &Shape,
    dy: &CubeTensor,
    options: &ConvOptions<2>,
) -> Option<CubeTensor> {
    if !is_supported(input, options) {
        return None;
    }
    let [input, dy] =
        [input, dy].map(|table| CubeBackend::float_permute(table.clone(), &[0, 3, 1, 2]));
    conv_weight_backward(
        input,
        dy,
        weight.clone(),
        options.clone(),
        ConvStrategy::ImplicitGemm,
    )
    .ok()
}

fn is_supported(table: &CubeTensor, options: &ConvOptions<2>) -> bool {
    options.groups == 1 && has_matrix_units(table.client.properties(), table.dtype)
}

/// Returns a table with `stride - 1` zeros between the pixels of another table.
fn spread(table: &CubeTensor, sides: [usize; 2], stride: [usize; 2]) -> CubeTensor {
    if stride == [1, 1] {
        return table.clone();
    }
    let [images, rows, columns, channels] = table.shape().dims::<4>();
    let [height, width] = sides;
    let zeros = zeros_client(
        table.client.clone(),
        table.device.clone(),
        Shape::new([images, height, width, channels]),
        table.dtype,
    );
    // The last rows and columns may be zeros, too.
    let slices = [
        Slice::new(0, None, 1),
        steps(rows, stride[0]),
        steps(columns, stride[1]),
        Slice::new(0, None, 1),
    ];
    CubeBackend::float_slice_assign(zeros, &slices, table.clone())
}

fn steps(count: usize, stride: usize) -> Slice {
    Slice::new(
        0,
        Some(((count - 1) * stride + 1) as isize),
        stride as isize,
    )
}
