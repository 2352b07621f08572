//! Finds normalisations that use statistics of this process only, although several processes
//! compute the batch.
//!
//! In: a module after a forward pass in training.
//! Out: paths of burn's batch normalisations.
//! Invariant: Lockstep's [`BatchNorm`](crate::BatchNorm) stores its running statistics at once.
//! burn's keeps each update pending until the next pass, which distinguishes the two.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

/// Returns the paths of burn's own `BatchNorm` modules. They do not use the
/// [`PassContext`](crate::PassContext), so they normalise with this process's part of a batch only.
/// Call this function after the first forward pass of a model on this thread: it finds the modules
/// whose update of the running statistics is still pending.
///
/// The call also stores the pending updates, as the next forward pass would.
pub fn locally_normalised<M: Module>(module: &M) -> Vec<String> {
    let before = Buffers::of(module);
    // `valid` stores what is pending.
    drop(module.valid());
    let after = Buffers::of(module);
    let changed = before
        .into_iter()
        .zip(after)
        .filter(|(before, after)| before.1 != after.1);
    let mut paths: Vec<String> = changed
        .map(|((path, _), _)| {
            path.rsplit_once('.')
                .map_or_else(String::new, |(module, _)| module.to_owned())
        })
        .collect();
    paths.dedup();
    paths
}

/// Buffers that are not trained, by their path.
#[derive(Default)]
struct Buffers {
    path: Vec<String>,
    found: Vec<(String, TensorData)>,
}

impl Buffers {
    fn of<M: Module>(module: &M) -> Vec<(String, TensorData)> {
        let mut buffers = Self::default();
        module.visit(&mut buffers);
        buffers.found
    }
}

impl ModuleVisitor for Buffers {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Running statistics are vectors; a frozen weight is not read.
        if D == 1 && !param.is_require_grad() {
            self.found
                .push((self.path.join("."), param.val().into_data()));
        }
    }
}
