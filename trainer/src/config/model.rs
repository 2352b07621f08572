//! The flags of residual networks.

use super::error::{ConfigError, conflict, invalid, missing};
use crate::config::cli::ModelArgs;
use burn_resnet::{ResNetConfig, Shortcut};

/// Weighted layers of the deepest accepted network; the deepest published network has 1,202.
const MAX_LAYERS: usize = 10_000;

impl ModelArgs {
    /// Returns the flags of the network with `depth` weighted layers and no parameters in its
    /// shortcuts.
    pub fn resnet(depth: usize) -> Self {
        Self {
            model: Some(format!("resnet{depth}")),
            depth: None,
            shortcut: Some(Shortcut::A),
        }
    }

    /// Applies the defaults and rejects contradictions. The name implies the depth.
    ///
    /// # Errors
    /// If the flags contradict each other, or there is no such network.
    pub(crate) fn fill(&mut self) -> Result<(), ConfigError> {
        let network = self.network()?;
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
        self.model = Some(network.name());
        self.depth = None;
        self.shortcut = Some(network.shortcut());
        Ok(())
    }

    /// Returns the network that these flags name, without the values that depend on the data.
    ///
    /// # Errors
    /// If the flags contradict each other, or there is no such network.
    pub fn network(&self) -> Result<ResNetConfig, ConfigError> {
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
    let network = ResNetConfig::from_name(name);
    network.map_err(|error| ConfigError(format!("--model or --depth: {error}")))
}
