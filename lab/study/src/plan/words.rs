//! The words of a cell's command, of the trainer or of `lab/peers/run.py`.
//!
//! In: the values of a point. Out: command and flags, without the output.

use toml::Value;

use super::point::Point;
use crate::file::{Kind, word};
use crate::peers::Framework;

/// Keys of a point that are not flags of the trainer.
pub(super) const OWN_KEYS: [&str; 5] = ["ranks", "network", "hosts", "framework", "launcher"];

/// Flags of the recipe in `lab/peers/accuracy.py` and `lab/peers/images.py`; mean and deviation are
/// those of CIFAR-10's training images.
const RECIPE: [&str; 20] = [
    "--dataset",
    "image-folder",
    "--eval-split",
    "test",
    "--augment",
    "crop-flip",
    "--learning-rate",
    "0.1",
    "--momentum",
    "0.9",
    "--weight-decay",
    "1e-4",
    "--schedule",
    "cosine",
    "--warmup-epochs",
    "0",
    "--normalize-mean",
    "0.4914,0.4822,0.4465",
    "--normalize-std",
    "0.2470,0.2435,0.2616",
];

impl Point<'_> {
    /// Returns the words of `lab/peers/run.py`.
    pub(super) fn peer_arguments(&self, peer: Framework) -> Vec<String> {
        let mut arguments = vec![records::name(peer)];
        for key in [
            "dtype",
            "steps",
            "warmup_steps",
            "epochs",
            "data_dir",
            "seed",
        ] {
            if let Some(value) = self.values.get(key).and_then(word) {
                arguments.extend([format!("--{}", key.replace('_', "-")), value]);
            }
        }
        arguments
    }

    pub(super) fn arguments(&self, batch: Option<(usize, usize)>) -> Vec<String> {
        let mut arguments = vec![records::name(self.matrix.kind)];
        let own = |key: &str| {
            OWN_KEYS.contains(&key) || key == "global_batch_size" || key == "batch_size_per_rank"
        };
        // The trainer refuses `--compress none` with methods that support no compression.
        let says_nothing =
            |key: &str, value: &Value| key == "compress" && value.as_str() == Some("none");
        for (key, value) in self
            .values
            .iter()
            .filter(|(key, value)| !own(key) && !says_nothing(key, value))
        {
            let flag = format!("--{}", key.replace('_', "-"));
            let value = word(value).unwrap_or_default();
            if value == "true" || value == "false" {
                arguments.push(format!("{flag}={value}"));
            } else {
                arguments.extend([flag, value]);
            }
        }
        if let Some((own, global)) = batch {
            // An exact sum on any number of ranks needs the batch of all ranks.
            let is_of_all =
                self.matrix.kind == Kind::Train && self.values.contains_key("global_batch_size");
            let (flag, size) = if is_of_all {
                ("--global-batch-size", global)
            } else {
                ("--batch-size-per-rank", own)
            };
            arguments.extend([flag.to_owned(), size.to_string()]);
        }
        if self.matrix.kind == Kind::Bench {
            arguments.push("--json".to_owned());
        } else if self.values.contains_key("framework") {
            arguments.extend(RECIPE.map(str::to_owned));
        }
        arguments
    }
}
