//! The public generic functions, compiled in this crate for f32 and bf16.
//!
//! In: nothing. Out: machine code that other crates link.
//! Invariant: each function listed here is `#[inline(never)]`. rustc then links a call in another
//! crate to the instance in this crate; without the attribute, or without the instance, every
//! calling crate would compile the kernels again.

use std::hint::black_box;

use half::bf16;

use crate::attention::Attention;
use crate::conv2d::{Conv2d, bias_gradient};
use crate::dropout::dropout;
use crate::group_norm::GroupNorm;
use crate::layer::Layer;
use crate::softmax::Softmax;
use crate::{Element, activation, batch_norm, copies, layer_norm, pool};

#[used]
static INSTANCES: fn() = || {
    instances::<f32>();
    instances::<bf16>();
};

fn instances<E: Element>() {
    black_box([
        activation::forward::<E> as *const (),
        activation::backward::<E> as *const (),
        Attention::forward::<E> as *const (),
        Attention::backward::<E> as *const (),
        batch_norm::normalize::<E> as *const (),
        batch_norm::scale_shift::<E> as *const (),
        batch_norm::moments::<E> as *const (),
        batch_norm::backward_sums::<E> as *const (),
        batch_norm::backward::<E> as *const (),
        bias_gradient::<E> as *const (),
        Conv2d::forward::<E> as *const (),
        Conv2d::data_gradient::<E> as *const (),
        Conv2d::weight_gradient::<E> as *const (),
        copies::swap_axes::<E> as *const (),
        copies::join::<E> as *const (),
        copies::part::<E> as *const (),
        copies::sum_parts::<E> as *const (),
        copies::repeat::<E> as *const (),
        copies::sum_repeated::<E> as *const (),
        dropout::<E> as *const (),
        GroupNorm::forward::<E> as *const (),
        GroupNorm::backward::<E> as *const (),
        Layer::forward::<E> as *const (),
        Layer::backward::<E> as *const (),
        layer_norm::forward::<E> as *const (),
        layer_norm::backward::<E> as *const (),
        pool::global_average::<E> as *const (),
        pool::global_average_backward::<E> as *const (),
        pool::halve::<E> as *const (),
        pool::double::<E> as *const (),
        pool::max_pool::<E> as *const (),
        pool::max_pool_backward::<E> as *const (),
        pool::resample::<E> as *const (),
        Softmax::forward::<E> as *const (),
        Softmax::backward::<E> as *const (),
    ]);
}
