//! Gradients handed over the moment they are final, while earlier layers are still computed.
//!
//! In: a [`GradientSink`] and the parameters of a layer. Out: calls in backward order, the last layer's first.
//! Invariant: a gradient goes to the sink or to the tape's gradients, never to both; a frozen parameter's goes to neither.
//! Why: Li et al. 2020, PyTorch Distributed, arXiv 2006.15704, section 3.2.3: communication hides behind the backward pass.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn::module::ParamId;
use burn::tensor::{TensorData, read_sync};

/// Takes gradients out of a backward pass.
pub trait GradientSink: Debug + Send + Sync {
    /// `gradient` is what this backward pass contributes to `parameter`, f32 in PyTorch's layout and memory order, and it will
    /// not change. Called once for each parameter and backward pass, on the thread that computes it.
    ///
    /// A GPU may not have computed it yet: whoever looks at the values first waits for it and copies them.
    fn take(&self, parameter: ParamId, gradient: TensorData);
}

/// Where a layer's gradients go.
#[derive(Clone, Debug)]
pub struct Handover {
    /// Who takes them.
    pub sink: Arc<dyn GradientSink>,
    /// The convolution's weight.
    pub weight: ParamId,
    /// The normalisation's scale.
    pub gamma: ParamId,
    /// The normalisation's shift.
    pub beta: ParamId,
}

/// Hands one gradient over, contiguous.
///
/// # Panics
/// When the device fails: a backward pass has no error to return.
pub(super) fn give<B: Backend>(sink: &dyn GradientSink, parameter: ParamId, gradient: FloatTensor<B>) {
    let data = read_sync(B::float_into_data(gradient)).expect("a gradient just computed can be read");
    sink.take(parameter, data);
}
