//! The family of residual networks, and weights for any model.
//!
//! In: flags, class count, seed; a weights file. Out: a [`ResNet`] on a device; a model with the
//! weights of the file.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use burn::module::Module;
use burn_resnet::{Head, ResNet, ResNetConfig, WeightsError, load_weights_with};

use crate::config::cli::ModelArgs;
use crate::config::{ConfigError, Family, ModelOption};
use crate::measure::report::Reporter;
use crate::model::family::{ModelFamily, ModelRequest};

/// The residual networks of He et al. 2015 (1512.03385), section 4.2.
#[derive(Debug)]
pub struct ResNetFamily;

impl ModelFamily for ResNetFamily {
    const NAME: &'static str = Family::RESNET.name;
    const OPTIONS: &'static [ModelOption] = Family::RESNET.options;
    type Args = ModelArgs;
    type Model = ResNet;

    fn fill(args: &mut ModelArgs) -> Result<(), ConfigError> {
        args.fill()
    }

    fn name(args: &ModelArgs) -> String {
        args.name()
    }

    fn num_values(args: &ModelArgs, request: &ModelRequest<'_>) -> Result<Option<u64>> {
        Ok(Some(layers(args, request)?.num_values()))
    }

    fn build(args: &ModelArgs, request: &ModelRequest<'_>) -> Result<ResNet> {
        resnet(args, request)
    }
}

/// Returns the configured network with random weights.
///
/// # Errors
/// If there is no network of that depth, or there are no classes.
pub fn resnet(model: &ModelArgs, request: &ModelRequest<'_>) -> Result<ResNet> {
    Ok(layers(model, request)?.init(request.seed, request.device))
}

fn layers(model: &ModelArgs, request: &ModelRequest<'_>) -> Result<ResNetConfig> {
    ensure!(
        request.num_classes > 0,
        "classes: expected at least 1, got 0"
    );
    Ok(model
        .network()?
        .with_num_classes(request.num_classes)
        .with_in_channels(request.in_channels)
        .with_zero_gamma(request.zero_gamma)
        .with_computation(request.computation()?))
}

/// Loads weights into `model`. Reports where the file holds them, and the unused tensors.
///
/// # Errors
/// Same as [`burn_resnet::load_weights_with`].
pub fn load_weights_with_report<M: Module>(
    model: M,
    path: &Path,
    head: Head,
    reporter: &Reporter,
) -> Result<M> {
    let (model, loaded) = load_weights_with(model, path, head).map_err(|error| match error {
        WeightsError::Head { .. } if head == Head::OfFile => {
            anyhow!(
                "{error}; `trainer train --new-head` takes the other layers, for other classes than those of the file"
            )
        }
        error => error.into(),
    })?;
    let path = path.display();
    if !loaded.kept.is_empty() {
        reporter.note(&format!(
            "weights {path}: taken: {}; new: {}",
            by_module(&loaded.taken),
            loaded.kept.join(", ")
        ));
    }
    if let Some(key) = loaded.key.as_ref().filter(|key| *key != "state_dict") {
        reporter.note(&format!("weights {path}: taken from under its key `{key}`"));
    }
    if let Some(unused) = loaded.describe_unused() {
        reporter.warn(&format!("weights {path}: {unused}"));
    }
    Ok(model)
}

/// Returns the number of tensors of each outermost module in `names`, such as `conv1 1, bn1 4`.
fn by_module(names: &[String]) -> String {
    let outermost = |name: &String| name.split('.').next().unwrap_or_default().to_owned();
    let modules = names.chunk_by(|a, b| outermost(a) == outermost(b));
    modules
        .map(|tensors| format!("{} {}", outermost(&tensors[0]), tensors.len()))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_counted_by_their_outermost_module() {
        let names = [
            "conv1.weight",
            "bn1.weight",
            "bn1.bias",
            "layer1.0.conv1.weight",
            "layer1.1.conv1.weight",
        ];
        assert_eq!(
            by_module(&names.map(str::to_owned)),
            "conv1 1, bn1 2, layer1 2"
        );
    }
}
