//! The job of a comparison: what every framework's script can run.
//!
//! In: a point with a framework. Out: the point with defaults, or what the scripts do not support.

use records::{IMAGENET, LAST_COMPARED_UPDATE};

use super::point::Point;
use super::words::OWN_KEYS;
use crate::cell::OF_FRAMEWORKS;
use crate::file::Kind;
use crate::peers::Framework;
use cluster::failure::Outcome;

impl Point<'_> {
    /// Completes and checks the job of a comparison.
    pub(super) fn check_job(&mut self, framework: Framework, ranks: usize) -> Outcome {
        let is_training = self.matrix.kind == Kind::Train;
        self.default("device", "flex");
        match self.matrix.kind {
            Kind::Netbench => {
                let text = "expected a matrix of kind bench or train";
                return Err(self.refusal("framework", text));
            }
            Kind::Bench => {
                self.default("steps", 8);
                self.default("warmup_steps", 2);
            }
            Kind::Train => self.default("seed", 0),
        }
        let is_known = |key: &str| OF_FRAMEWORKS.contains(&key) || OWN_KEYS.contains(&key);
        if let Some(key) = self.values.keys().find(|key| !is_known(key)) {
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
        let model = self.text("model", "")?;
        let depth = model.strip_prefix("resnet");
        let depth = depth.and_then(|depth| depth.parse::<usize>().ok());
        let is_imagenet = IMAGENET.contains(&model.as_str());
        // Lockstep's own steps need no script, so the trainer checks the name.
        let needs_no_script = framework.is_ours() && !is_training && !model.starts_with("resnet");
        let is_known = match is_imagenet {
            true => !is_training,
            false => needs_no_script || depth.is_some_and(|depth| depth >= 8 && depth % 6 == 2),
        };
        if !is_known {
            let text = format!(
                "expected resnet<6n+2> as in resnet20, or without training ImageNet's {}, got `{model}`; other networks, \
                 such as vit-tiny, have no script: measure them with Lockstep only (compare --with \"\")",
                IMAGENET.join(", ")
            );
            return Err(self.refusal("model", &text));
        }
        if is_imagenet && !framework.has_imagenet() {
            let text = format!(
                "{model}: expected pytorch or horovod for ImageNet's networks, got `{}`",
                records::name(framework)
            );
            return Err(self.refusal("framework", &text));
        }
        if !is_training {
            let steps = self.count("steps", 1)? + self.count("warmup_steps", 0).unwrap_or(0);
            if steps <= LAST_COMPARED_UPDATE {
                let text = format!(
                    "expected at least {} with warmup_steps, as the loss after {LAST_COMPARED_UPDATE} is compared, got {steps}",
                    LAST_COMPARED_UPDATE + 1
                );
                return Err(self.refusal("steps", &text));
            }
            return Ok(());
        }
        for key in ["epochs", "data_dir"] {
            if !self.values.contains_key(key) {
                return Err(self.refusal(key, "expected a value: frameworks train on images"));
            }
        }
        match ranks {
            1 => Ok(()),
            _ => Err(self.refusal("ranks", "expected 1: frameworks train on one rank")),
        }
    }
}
