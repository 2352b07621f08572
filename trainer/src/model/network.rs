//! The networks of the program, and weights for any model.
//!
//! In: flags, class count, image size, seed; a weights file. Out: a [`Network`] on a device; a
//! model with the weights of the file.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use burn_resnet::{Activations, Head, ResNet, ResNetConfig, WeightsError, load_weights_with};
use networks::{ConvNeXt, MobileNetV2, VisionTransformer, WideResNet};

use crate::config::cli::ModelArgs;
use crate::config::{ConfigError, Family, ModelChoice, ModelOption};
use crate::measure::report::Reporter;
use crate::model::ImageClassifier;
use crate::model::family::{ModelFamily, ModelRequest};

/// The networks of the program. Checkpoints name the family by its first networks, the residual
/// networks.
#[derive(Debug)]
pub struct NetworkFamily;

/// A network of the program. Its parameters have the names of the network itself.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has few networks")]
#[allow(missing_docs, reason = "a variant is the network of the same name")]
pub enum Network {
    ResNet(ResNet),
    WideResNet(WideResNet),
    MobileNetV2(MobileNetV2),
    ConvNeXt(ConvNeXt),
    VisionTransformer(VisionTransformer),
}

impl ImageClassifier for Network {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        match self {
            Self::ResNet(network) => network.forward(images),
            Self::WideResNet(network) => network.forward(images),
            Self::MobileNetV2(network) => network.forward(images),
            Self::ConvNeXt(network) => network.forward(images),
            Self::VisionTransformer(network) => network.forward(images),
        }
    }

    fn supports_pass_context(&self) -> bool {
        true
    }

    fn is_recordable(&self) -> bool {
        match self {
            Self::ResNet(_) | Self::WideResNet(_) | Self::MobileNetV2(_) => true,
            Self::ConvNeXt(network) => !network.draws(),
            Self::VisionTransformer(network) => !network.draws(),
        }
    }
}

impl ModelFamily for NetworkFamily {
    const NAME: &'static str = Family::BUILT_IN.name;
    const OPTIONS: &'static [ModelOption] = Family::BUILT_IN.options;
    type Args = ModelArgs;
    type Model = Network;

    fn fill(args: &mut ModelArgs) -> Result<(), ConfigError> {
        args.fill()
    }

    fn name(args: &ModelArgs) -> String {
        args.name()
    }

    fn num_values(args: &ModelArgs, request: &ModelRequest<'_>) -> Result<Option<u64>> {
        Ok(match args.choice()? {
            ModelChoice::ResNet(network) => Some(completed(network, request)?.num_values()),
            ModelChoice::VisionTransformer { .. } => Some(VisionTransformer::num_values(
                only_size(request.image_sizes)?,
                request.in_channels,
                request.num_classes,
            )),
            _ => None,
        })
    }

    fn optimizer(args: &ModelArgs) -> Option<ModuleOptimizer> {
        match args.choice() {
            Ok(ModelChoice::VisionTransformer { .. }) => Some(VisionTransformer::optimizer()),
            _ => None,
        }
    }

    fn build(args: &ModelArgs, request: &ModelRequest<'_>) -> Result<Network> {
        let choice = args.choice()?;
        expect_classes(request)?;
        expect_supported(&choice, request)?;
        let (channels, classes, device) =
            (request.in_channels, request.num_classes, request.device);
        Ok(match choice {
            ModelChoice::ResNet(network) => {
                Network::ResNet(completed(network, request)?.init(request.seed, device))
            }
            ModelChoice::WideResNet => {
                Network::WideResNet(WideResNet::new(28, 10, channels, classes, device))
            }
            ModelChoice::MobileNetV2 => {
                Network::MobileNetV2(MobileNetV2::new(channels, classes, device))
            }
            ModelChoice::ConvNeXt { stochastic_depth } => {
                Network::ConvNeXt(ConvNeXt::new(channels, classes, stochastic_depth, device))
            }
            ModelChoice::VisionTransformer { stochastic_depth } => {
                let size = only_size(request.image_sizes)?;
                Network::VisionTransformer(VisionTransformer::new(
                    size,
                    channels,
                    classes,
                    stochastic_depth,
                    device,
                ))
            }
        })
    }
}

fn expect_classes(request: &ModelRequest<'_>) -> Result<()> {
    ensure!(
        request.num_classes > 0,
        "classes: expected at least 1, got 0"
    );
    Ok(())
}

/// Rejects options of a request that the network does not support, and images that the network does
/// not accept.
fn expect_supported(choice: &ModelChoice, request: &ModelRequest<'_>) -> Result<()> {
    if let ModelChoice::ResNet(_) = choice {
        return Ok(());
    }
    let name = choice.name();
    ensure!(
        request.compute.dtype() != Activations::F16,
        "--dtype: expected f32 or bf16 with --model {name}, got f16"
    );
    ensure!(
        !request.zero_gamma,
        "--zero-gamma has no effect with --model {name}: only residual networks, such as resnet20, have it; \
         remove --zero-gamma, or give --zero-gamma=false over that of a recipe"
    );
    for size in request.image_sizes {
        match choice {
            ModelChoice::ConvNeXt { .. } => ConvNeXt::expect_image_size(*size),
            ModelChoice::VisionTransformer { .. } => VisionTransformer::expect_image_size(*size),
            _ => Ok(()),
        }
        .map_err(|error| anyhow!("{error}; change --image-size or --resolution"))?;
    }
    Ok(())
}

/// Returns the one size of all images, to which the positions of a vision transformer belong.
fn only_size(sizes: &[[usize; 2]]) -> Result<[usize; 2]> {
    let mut others = sizes.iter();
    let size = *others.next().context("images: expected a size, got none")?;
    if let Some([height, width]) = others.find(|other| **other != size) {
        bail!(
            "--resolution: expected one size of all images with --model vit-tiny, whose positions belong to a size, \
             got {} x {} and {height} x {width} pixels; give one size, such as --resolution {}",
            size[0],
            size[1],
            size[0]
        );
    }
    Ok(size)
}

/// Returns the configured residual network with random weights.
///
/// # Errors
/// If there is no residual network of that name, or there are no classes.
pub fn resnet(model: &ModelArgs, request: &ModelRequest<'_>) -> Result<ResNet> {
    let network = completed(model.residual()?, request)?;
    Ok(network.init(request.seed, request.device))
}

/// Returns the residual network with the values that depend on the data.
fn completed(network: ResNetConfig, request: &ModelRequest<'_>) -> Result<ResNetConfig> {
    expect_classes(request)?;
    Ok(network
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
