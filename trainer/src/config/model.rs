//! The flags of the program's networks.

use super::error::{ConfigError, conflict, invalid, missing};
use super::options::in_range;
use crate::config::cli::ModelArgs;
use burn_resnet::{ModelError, ResNetConfig, Shortcut};

/// Weighted layers of the deepest accepted network; the deepest published network has 1,202.
const MAX_LAYERS: usize = 10_000;

/// Names of the networks that are not residual networks of He et al.
const OTHERS: [&str; 4] = [
    "wide-resnet28-10",
    "mobilenet-v2",
    "convnext-tiny",
    "vit-tiny",
];

/// A network that `--model` names, with its options.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelChoice {
    /// A residual network, without the values that depend on the data.
    ResNet(ResNetConfig),
    /// WideResNet-28-10.
    WideResNet,
    /// MobileNetV2.
    MobileNetV2,
    /// ConvNeXt-T.
    ConvNeXt { stochastic_depth: f64 },
    /// ViT-Ti/4.
    VisionTransformer { stochastic_depth: f64 },
}

impl ModelChoice {
    /// Returns the name for `--model`.
    pub fn name(&self) -> String {
        match self {
            Self::ResNet(network) => network.name(),
            Self::WideResNet => OTHERS[0].to_owned(),
            Self::MobileNetV2 => OTHERS[1].to_owned(),
            Self::ConvNeXt { .. } => OTHERS[2].to_owned(),
            Self::VisionTransformer { .. } => OTHERS[3].to_owned(),
        }
    }
}

impl ModelArgs {
    /// Returns the flags of the network with `depth` weighted layers and no parameters in its
    /// shortcuts.
    pub fn resnet(depth: usize) -> Self {
        Self {
            model: Some(format!("resnet{depth}")),
            shortcut: Some(Shortcut::A),
            ..Self::default()
        }
    }

    /// Applies the defaults and rejects contradictions. The name implies the depth.
    ///
    /// # Errors
    /// If the flags contradict each other, or there is no such network.
    pub(crate) fn fill(&mut self) -> Result<(), ConfigError> {
        let choice = self.choice()?;
        match &choice {
            ModelChoice::ResNet(network) => {
                if network.depth() > MAX_LAYERS {
                    let expected = format!("a network of at most {MAX_LAYERS} layers");
                    return Err(invalid("--model", expected, network.name()));
                }
                if !network.is_small() && self.shortcut == Some(Shortcut::A) {
                    let name = network.name();
                    return Err(conflict(
                        "--shortcut a",
                        format!("--model {name}"),
                        format!("that is ImageNet's; the one for small images is cifar-{name}"),
                    ));
                }
                self.shortcut = Some(network.shortcut());
            }
            ModelChoice::ConvNeXt { stochastic_depth }
            | ModelChoice::VisionTransformer { stochastic_depth } => {
                self.stochastic_depth = Some(*stochastic_depth);
            }
            ModelChoice::WideResNet | ModelChoice::MobileNetV2 => {}
        }
        self.model = Some(choice.name());
        self.depth = None;
        Ok(())
    }

    /// Returns the network that these flags name.
    ///
    /// # Errors
    /// If the flags contradict each other, or there is no such network.
    pub fn choice(&self) -> Result<ModelChoice, ConfigError> {
        let drop = self.stochastic_depth.unwrap_or(0.0);
        let stochastic_depth = in_range("stochastic-depth", drop, "from 0, below 1", |drop| {
            (0.0..1.0).contains(&drop)
        })?;
        let choice = match self.model.as_deref() {
            Some("wide-resnet28-10" | "wide-resnet-28-10") => ModelChoice::WideResNet,
            Some("mobilenet-v2") => ModelChoice::MobileNetV2,
            Some("convnext-tiny") => ModelChoice::ConvNeXt { stochastic_depth },
            Some("vit-tiny") => ModelChoice::VisionTransformer { stochastic_depth },
            _ => ModelChoice::ResNet(self.residual()?),
        };
        let is_residual = matches!(choice, ModelChoice::ResNet(_));
        let has_drops = matches!(
            choice,
            ModelChoice::ConvNeXt { .. } | ModelChoice::VisionTransformer { .. }
        );
        let vain = [
            (
                "--depth",
                self.depth.is_some() && !is_residual,
                "resnet<6n+2>",
            ),
            (
                "--shortcut",
                self.shortcut.is_some() && !is_residual,
                "residual networks, such as resnet20,",
            ),
            (
                "--stochastic-depth",
                self.stochastic_depth.is_some() && !has_drops,
                "convnext-tiny and vit-tiny",
            ),
        ];
        for (option, is_vain, owners) in vain {
            if is_vain {
                let remedy = format!("only {owners} have {option}; remove {option}");
                return Err(conflict(
                    option,
                    format!("--model {}", choice.name()),
                    remedy,
                ));
            }
        }
        Ok(choice)
    }

    /// Returns the residual network that these flags name, without the values that depend on the
    /// data.
    ///
    /// # Errors
    /// If the flags contradict each other, or there is no such residual network.
    pub fn residual(&self) -> Result<ResNetConfig, ConfigError> {
        let network = match (self.model.as_deref(), self.depth) {
            (Some("resnet"), None) => {
                return Err(missing(
                    "--depth",
                    "--model resnet does not name the depth",
                    "add it, or give --model resnet20",
                ));
            }
            (None | Some("resnet"), depth) => named(&format!("resnet{}", depth.unwrap_or(20)))?,
            (Some(name), depth) => {
                let network = named(name)?;
                if depth.is_some_and(|depth| depth != network.depth()) {
                    return Err(conflict(
                        "--depth",
                        format!("--model {name}"),
                        "give one of them",
                    ));
                }
                network
            }
        };
        Ok(match self.shortcut {
            Some(shortcut) => network.with_shortcut(shortcut),
            None => network,
        })
    }

    /// Returns a name such as `resnet20`; empty before the defaults are applied.
    pub fn name(&self) -> String {
        self.model.clone().unwrap_or_default()
    }
}

fn named(name: &str) -> Result<ResNetConfig, ConfigError> {
    ResNetConfig::from_name(name).map_err(|error| match error {
        ModelError::Name { name } => invalid(
            "--model",
            format!(
                "resnet<6n+2> as in resnet20, cifar-resnet18, cifar-resnet34, resnet18, 34, 50, 101, 152, or {}",
                OTHERS.join(", ")
            ),
            name,
        ),
        error => ConfigError(format!("--model or --depth: {error}")),
    })
}
