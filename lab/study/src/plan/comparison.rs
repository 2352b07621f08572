//! The job of a comparison: what every framework's script can run.
//!
//! In: a point with a framework. Out: the point with defaults, or what the scripts do not support.

use records::{IMAGENET, LAST_COMPARED_UPDATE};
use toml::Value;

use super::point::Point;
use super::words::OWN_KEYS;
use crate::cell::OF_FRAMEWORKS;
use crate::file::Kind;
use cluster::failure::Outcome;

impl Point<'_> {
    /// Completes and checks the job of a comparison.
    pub(super) fn check_job(&mut self, ranks: usize) -> Outcome {
        let is_training = self.matrix.kind == Kind::Train;
        if self.matrix.kind == Kind::Netbench {
            return Err(self.refusal("framework", "expected a matrix of kind bench or train"));
        }
        let mut defaults = vec![("model", "resnet20"), ("dtype", "f32"), ("device", "flex")];
        defaults.retain(|(key, _)| !self.values.contains_key(*key));
        for (key, value) in defaults {
            self.values.insert(key.to_owned(), Value::from(value));
        }
        if !is_training {
            self.values.entry("steps").or_insert(Value::Integer(8));
            self.values
                .entry("warmup_steps")
                .or_insert(Value::Integer(2));
        } else {
            self.values.entry("seed").or_insert(Value::Integer(0));
        }
        let is_foreign = |key: &&String| {
            !OF_FRAMEWORKS.contains(&key.as_str()) && !OWN_KEYS.contains(&key.as_str())
        };
        if let Some(key) = self.values.keys().find(is_foreign) {
            let text = format!(
                "the scripts of other frameworks do not support it, expected one of {}",
                OF_FRAMEWORKS.join(", ")
            );
            return Err(self.refusal(key, &text));
        }
        let dtype = self.text("dtype", "")?;
        if !["f32", "bf16"].contains(&dtype.as_str()) {
            return Err(self.refusal("dtype", &format!("expected f32 or bf16, got `{dtype}`")));
        }
        self.check_model(is_training)?;
        if is_training {
            for key in ["epochs", "data_dir"] {
                if !self.values.contains_key(key) {
                    return Err(self.refusal(key, "expected a value: frameworks train on images"));
                }
            }
            if ranks > 1 {
                return Err(self.refusal("ranks", "expected 1: frameworks train on one rank"));
            }
            return Ok(());
        }
        let steps = self.count("steps", 1)?;
        let warmup = self.values.get("warmup_steps").and_then(Value::as_integer);
        let all = steps as i64 + warmup.unwrap_or(0);
        if all <= LAST_COMPARED_UPDATE as i64 {
            let text = format!(
                "expected at least {} with warmup_steps, as the loss after {LAST_COMPARED_UPDATE} is compared, got {all}",
                LAST_COMPARED_UPDATE + 1
            );
            return Err(self.refusal("steps", &text));
        }
        Ok(())
    }

    fn check_model(&self, is_training: bool) -> Outcome {
        let model = self.text("model", "")?;
        let depth = model
            .strip_prefix("resnet")
            .and_then(|depth| depth.parse::<usize>().ok());
        let is_small = depth.is_some_and(|depth| depth >= 8 && depth % 6 == 2);
        if !IMAGENET.contains(&model.as_str()) {
            return if is_small {
                Ok(())
            } else {
                let text = format!(
                    "expected resnet<6n+2> as in resnet20, or ImageNet's {}, got `{model}`",
                    IMAGENET.join(", ")
                );
                Err(self.refusal("model", &text))
            };
        }
        if is_training {
            let text =
                format!("expected resnet<6n+2>: frameworks train on small images, got `{model}`");
            return Err(self.refusal("model", &text));
        }
        match self.framework()? {
            Some(framework) if !framework.has_imagenet() => {
                let text = format!(
                    "{model}: expected pytorch or horovod for ImageNet's networks, got `{}`",
                    framework.word()
                );
                Err(self.refusal("framework", &text))
            }
            _ => Ok(()),
        }
    }
}
