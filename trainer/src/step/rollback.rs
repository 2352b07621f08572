//! What a skipped step would leave behind: norm statistics, which a forward pass has changed by then.
//!
//! In: the model before a step. Out: the same statistics after it. Invariant: nothing passes through host memory.

use burn::module::Module;
use burn::tensor::Tensor;
use distributed::{ElementOrder, ParameterLayout, replace, tensors};

/// Puts norm statistics back.
#[derive(Debug)]
pub(super) struct Rollback {
    /// Of the norm statistics.
    layout: ParameterLayout,
}

/// Norm statistics as they were.
#[derive(Debug)]
pub(super) struct Saved(Vec<Tensor<1>>);

impl Rollback {
    /// For modules built like `module`.
    pub(super) fn new<M: Module>(module: &M) -> Self {
        Self { layout: ParameterLayout::statistics(module) }
    }

    /// To be called before the first forward pass of a step.
    pub(super) fn save<M: Module>(&self, module: &M) -> Saved {
        Saved(tensors(module, &self.layout, ElementOrder::Module))
    }

    /// Puts back what was saved.
    pub(super) fn undo<M: Module>(&self, module: &mut M, saved: Option<Saved>) {
        if let Some(Saved(statistics)) = saved {
            *module = replace(module.clone(), &self.layout, ElementOrder::Module, statistics);
        }
    }
}
