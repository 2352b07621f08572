//! The public operations for each element, compiled here once and not again in every crate that calls them.
//!
//! In and out: as the generic functions of the modules say, of which each calls one method and does nothing else.
//! Invariant: nothing below these methods is generic over what a caller chooses, so a calling crate compiles calls only.

#![allow(
    private_interfaces,
    reason = "`Entries` can only be named inside the crate"
)]

use half::bf16;

use crate::activation::{self, Function};
use crate::attention::Attention;
use crate::batch_norm::{
    Affine, Rectifier, Residual, ResidualGradient, Saved, gradient, moments, normalize, sums,
};
use crate::conv2d::{Addend, Conv2d, Epilogue, bias};
use crate::layer::{Backward, Gradients, Input, Layer};
use crate::layer_norm;
use crate::pool::{MaxPoolShape, average, max};
use crate::simd::Isa;

macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) => $function:path;)*) => {
        /// One method an operation; not nameable outside.
        pub trait Entries: Sized {
            $(#[allow(clippy::too_many_arguments)] fn $name($($argument: $type),*);)*
        }

        entries!(@of f32 $($name($($argument: $type),*) => $function;)*);
        entries!(@of bf16 $($name($($argument: $type),*) => $function;)*);
    };
    (@of $element:ident $($name:ident($($argument:ident: $type:ty),*) => $function:path;)*) => {
        impl Entries for $element {
            $(fn $name($($argument: $type),*) { $function($($argument),*) })*
        }
    };
}

entries! {
    conv2d_forward(
        conv: &Conv2d, x: &[Self], packed: &[f32], y: &mut [Self], workspace: &mut [f32], epilogue: Epilogue<'_>
    ) => Conv2d::forward_of;
    bias_gradient(isa: Isa, dy: &[Self], db: &mut [f32], workspace: &mut [f32]) => bias::bias_gradient_of;
    conv2d_data_gradient(
        conv: &Conv2d, dy: &[Self], packed: &[f32], addend: Addend<'_, Self>, dx: &mut [Self], workspace: &mut [f32]
    ) => Conv2d::data_gradient_of;
    conv2d_weight_gradient(conv: &Conv2d, x: &[Self], dy: &[Self], dw: &mut [f32], workspace: &mut [f32])
        => Conv2d::weight_gradient_of;
    normalize(
        isa: Isa, affine: &Affine<'_>, x: &[Self], residual: Residual<'_, Self>, rectifier: Rectifier, y: &mut [Self]
    ) => normalize::normalize_of;
    scale_shift(
        isa: Isa, scale: &[f32], shift: &[f32], x: &[Self], residual: Residual<'_, Self>, rectifier: Rectifier, y: &mut [Self]
    ) => normalize::scale_shift_of;
    batch_moments(isa: Isa, x: &[Self], moments: &mut [f64], workspace: &mut [f32]) => moments::moments_of;
    backward_sums(isa: Isa, saved: &Saved<'_, Self>, dy: &[Self], sums: &mut [f64], workspace: &mut [f64])
        => sums::backward_sums_of;
    backward(
        isa: Isa, saved: &Saved<'_, Self>, sums: &[f64], count: f64, dy: &[Self], dx: &mut [Self],
        residual: ResidualGradient<'_, Self>
    ) => gradient::backward_of;
    layer_forward(
        layer: &Layer, input: Input<'_, Self>, packed: &[f32], z: &mut [Self], workspace: &mut [f32], moments: &mut [f64]
    ) => Layer::forward_of;
    layer_backward(layer: &Layer, given: &Backward<'_, Self>, wanted: Gradients<'_, Self>, workspace: &mut [f32])
        => Layer::backward_of;
    activation_forward(isa: Isa, function: Function, x: &[Self], y: &mut [Self]) => activation::forward_of;
    activation_backward(isa: Isa, function: Function, x: &[Self], dy: &[Self], dx: &mut [Self]) => activation::backward_of;
    layer_norm_forward(isa: Isa, epsilon: f32, x: &[Self], gamma: &[f32], beta: &[f32], y: &mut [Self])
        => layer_norm::forward_of;
    layer_norm_backward(
        isa: Isa, epsilon: f32, x: &[Self], gamma: &[f32], dy: &[Self], wanted: layer_norm::Gradients<'_, Self>,
        workspace: &mut [f32]
    ) => layer_norm::backward_of;
    attention_forward(attention: &Attention, isa: Isa, qkv: &[Self], y: &mut [Self], workspace: &mut [f32])
        => Attention::forward_of;
    attention_backward(
        attention: &Attention, isa: Isa, qkv: &[Self], dy: &[Self], d_qkv: &mut [Self], workspace: &mut [f32]
    ) => Attention::backward_of;
    global_average(isa: Isa, x: &[Self], pixels: usize, channels: usize, y: &mut [f32]) => average::global_average_of;
    global_average_backward(isa: Isa, dy: &[f32], pixels: usize, channels: usize, dx: &mut [Self])
        => average::global_average_backward_of;
    max_pool(isa: Isa, shape: MaxPoolShape, x: &[Self], y: &mut [Self], taps: &mut [u8]) => max::max_pool_of;
    max_pool_backward(isa: Isa, shape: MaxPoolShape, dy: &[Self], taps: &[u8], dx: &mut [Self])
        => max::max_pool_backward_of;
}
