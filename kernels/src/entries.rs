//! The public operations for each element, compiled here once and not again in every crate that calls them.
//!
//! In and out: as the generic functions of the modules say, of which each calls one method and does nothing else.
//! Invariant: nothing below these methods is generic over what a caller chooses, so a calling crate compiles calls only.

#![allow(private_interfaces, reason = "`Entries` can only be named inside the crate")]

use half::bf16;

use crate::batch_norm::{Affine, Residual, ResidualGradient, Saved, gradient, normalize, sums};
use crate::conv2d::Conv2d;
use crate::layer::{Backward, Gradients, Input, Layer};
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
        conv: &Conv2d, x: &[Self], packed: &[f32], y: &mut [Self], workspace: &mut [f32], moments: Option<&mut [f64]>
    ) => Conv2d::forward_of;
    conv2d_data_gradient(
        conv: &Conv2d, dy: &[Self], packed: &[f32], addend: Option<&[Self]>, dx: &mut [Self], workspace: &mut [f32]
    ) => Conv2d::data_gradient_of;
    conv2d_weight_gradient(conv: &Conv2d, x: &[Self], dy: &[Self], dw: &mut [f32], workspace: &mut [f32])
        => Conv2d::weight_gradient_of;
    normalize(
        isa: Isa, affine: &Affine<'_>, x: &[Self], residual: Residual<'_, Self>, relu: bool, y: &mut [Self]
    ) => normalize::normalize_of;
    scale_shift(
        isa: Isa, scale: &[f32], shift: &[f32], x: &[Self], residual: Residual<'_, Self>, relu: bool, y: &mut [Self]
    ) => normalize::scale_shift_of;
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
    global_average(isa: Isa, x: &[Self], pixels: usize, channels: usize, y: &mut [f32]) => average::global_average_of;
    global_average_backward(isa: Isa, dy: &[f32], pixels: usize, channels: usize, dx: &mut [Self])
        => average::global_average_backward_of;
    max_pool(isa: Isa, shape: MaxPoolShape, x: &[Self], y: &mut [Self], taps: &mut [u8]) => max::max_pool_of;
    max_pool_backward(isa: Isa, shape: MaxPoolShape, dy: &[Self], taps: &[u8], dx: &mut [Self])
        => max::max_pool_backward_of;
}
