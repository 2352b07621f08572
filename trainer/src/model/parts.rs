//! Parts of a model, named by fields: frozen parts, and parts with their own learning rate.
//!
//! In: names such as `layer1` or `layer1.0.conv1`. Out: the parameters within them. Names may omit
//! variants of enums, and modules that hold the whole model.
//! Invariant: a name that the model does not have is rejected.

use std::iter::successors;

use anyhow::{Result, ensure};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use burn_resnet::shared_modules;
use distributed::replica::ParameterLayout;

/// Returns true if the tensor at `path` belongs to `part`. `part` matches the whole path, or the
/// path below up to `depth` modules that hold the whole model.
pub fn is_within(path: &str, part: &str, depth: usize) -> bool {
    let below = successors(Some(path), |path| {
        path.split_once('.').map(|(_, rest)| rest)
    })
    .take(depth + 1);
    let is_part = |rest: &str| rest.is_empty() || rest.starts_with('.');
    below
        .into_iter()
        .any(|path| path.strip_prefix(part).is_some_and(is_part))
}

/// Returns the number of outermost modules that hold all of `layout`.
pub fn depth(layout: &ParameterLayout) -> usize {
    let paths: Vec<&str> = layout
        .entries()
        .iter()
        .map(|entry| entry.path.as_str())
        .collect();
    shared_modules(&paths)
}

/// Rejects parts without a parameter of `layout`.
///
/// # Errors
/// A sentence that names `option` and the outermost parts of the model.
pub fn expect(option: &str, parts: &[String], layout: &ParameterLayout) -> Result<()> {
    let paths = || layout.entries().iter().map(|entry| entry.path.as_str());
    let depth = depth(layout);
    for part in parts {
        let mut outermost: Vec<&str> = paths()
            .filter_map(|path| path.split('.').nth(depth))
            .collect();
        outermost.dedup();
        ensure!(
            paths().any(|path| is_within(path, part, depth)),
            "{option} {part}: expected a part of the model that has parameters to train, as {}, or one within them",
            outermost.join(", ")
        );
    }
    Ok(())
}

/// Freezes these parts of `model`: they get no gradient. Norm statistics still update, as in
/// PyTorch without `requires_grad`.
pub fn freeze<M: Module>(model: M, parts: &[String]) -> M {
    let depth = depth(&ParameterLayout::new(&model));
    model.map(&mut Freezing {
        path: Vec::new(),
        parts,
        depth,
    })
}

struct Freezing<'a> {
    /// Field names; the name is empty for a variant of an enum.
    path: Vec<String>,
    parts: &'a [String],
    depth: usize,
}

impl ModuleMapper for Freezing<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push(if container_type.starts_with("Enum:") {
            String::new()
        } else {
            name.to_owned()
        });
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let names: Vec<&str> = self
            .path
            .iter()
            .map(String::as_str)
            .filter(|name| !name.is_empty())
            .collect();
        let path = names.join(".");
        match param.is_require_grad()
            && self
                .parts
                .iter()
                .any(|part| is_within(&path, part, self.depth))
        {
            true => param.no_grad(),
            false => param,
        }
    }
}
