//! Defaults and checks of the flags that name a residual network.

use super::checks::{Filled, conflict, invalid, missing};
use super::error::ConfigError;
use crate::config::choices::ShortcutKind;
use crate::config::cli::ModelArgs;
use burn_resnet::{ResNetConfig, Shortcut};

/// The deepest network that is made; the deepest published has 1,202 layers.
const MOST_LAYERS: usize = 10_000;

impl ModelArgs {
    /// The residual network with `depth` weighted layers and no parameters in its shortcuts.
    pub fn resnet(depth: usize) -> Self {
        Self {
            model: Some(format!("resnet{depth}")),
            depth: None,
            shortcut: Some(ShortcutKind::A),
        }
    }

    /// Fills the gaps, and refuses what contradicts itself. The name tells the depth.
    ///
    /// # Errors
    /// When the flags contradict each other, or there is no such network.
    pub(crate) fn fill(&mut self) -> Result<(), ConfigError> {
        let depth = self.depth.take();
        let named = match self.model.as_deref() {
            None | Some("resnet") => None,
            Some(name) => Some(ResNetConfig::from_name(name)?.depth()),
        };
        if self.model.as_deref() == Some("resnet") && depth.is_none() {
            return Err(missing(
                "--depth",
                "--model resnet does not tell the depth",
                "add it, or give --model resnet20",
            ));
        }
        if let (Some(named), Some(depth)) = (named, depth)
            && named != depth
        {
            return Err(conflict(
                "--depth",
                format!("--model resnet{named}"),
                "give one of them",
            ));
        }
        let network = match (named, &self.model) {
            (Some(_), Some(name)) => ResNetConfig::from_name(name)?,
            _ => ResNetConfig::from_name(&format!("resnet{}", depth.unwrap_or(20)))?,
        };
        if network.depth() > MOST_LAYERS {
            let expected = format!("a network of at most {MOST_LAYERS} layers");
            return Err(invalid("--model", expected, network.name()));
        }
        self.model = Some(network.name());
        if !network.is_small() && self.shortcut == Some(ShortcutKind::A) {
            return Err(conflict(
                "--shortcut a",
                format!("--model {}", network.name()),
                format!(
                    "that is ImageNet's; the one for small images is cifar-{}",
                    network.name()
                ),
            ));
        }
        self.shortcut.get_or_insert(match network.shortcut() {
            Shortcut::A => ShortcutKind::A,
            Shortcut::B => ShortcutKind::B,
        });
        Ok(())
    }

    /// The network that filled flags name, but for what only the data tell.
    ///
    /// # Errors
    /// When there is no such network.
    pub fn network(&self) -> Result<ResNetConfig, ConfigError> {
        Ok(ResNetConfig::from_name(&self.name())?)
    }

    /// Name such as `resnet20`.
    pub fn name(&self) -> String {
        self.model.filled()
    }
}
