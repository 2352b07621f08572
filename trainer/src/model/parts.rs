//! Parts of a model by the names of their fields: those that stay as they are, those that learn faster or slower.
//!
//! In: names such as `layer1` or `layer1.0.conv1`. Out: the parameters within them.
//! Invariant: a name that the model has not is refused.

use anyhow::{Result, ensure};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use distributed::ParameterLayout;

/// Whether the tensor at `path` belongs to `part`.
pub fn is_within(path: &str, part: &str) -> bool {
    path.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Refuses parts without a parameter of `layout`.
///
/// # Errors
/// A sentence that names `option` and the outermost parts that there are.
pub fn expect(option: &str, parts: &[String], layout: &ParameterLayout) -> Result<()> {
    let paths = || layout.entries().iter().map(|entry| entry.path.as_str());
    for part in parts {
        let mut outermost: Vec<&str> = paths().filter_map(|path| path.split('.').next()).collect();
        outermost.dedup();
        ensure!(
            paths().any(|path| is_within(path, part)),
            "{option} {part}: expected a part of the model that has parameters to train, as {}, or one within them",
            outermost.join(", ")
        );
    }
    Ok(())
}

/// `model` with the parameters of these parts left out of training: no gradient is computed for them. Norm statistics go on, as in
/// PyTorch where only `requires_grad` is switched off.
pub fn freeze<M: Module>(model: M, parts: &[String]) -> M {
    model.map(&mut Freezing { path: Vec::new(), parts })
}

struct Freezing<'a> {
    path: Vec<String>,
    parts: &'a [String],
}

impl ModuleMapper for Freezing<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        match param.is_require_grad() && self.parts.iter().any(|part| is_within(&path, part)) {
            true => param.no_grad(),
            false => param,
        }
    }
}
