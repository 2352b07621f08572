//! Options in the name of a run.
//!
//! In: decided flags. Out: a short word for each option that runs are commonly compared by and that
//! is not the default.
//! Invariant: options that may change when a run is resumed, and options of the machine, are no
//! part of a name.

use super::choices::ModelOption;
use super::cli::TrainArgs;
use super::file;
use super::resolve::Sections;

/// An option of a name.
struct Named {
    /// Before the value.
    prefix: &'static str,
    value: fn(&TrainArgs) -> Option<String>,
    clear: fn(&mut TrainArgs),
}

/// The row of an option.
macro_rules! named {
    ($prefix:literal, $section:ident . $option:ident) => {
        Named {
            prefix: $prefix,
            value: |flags| flags.$section.$option.as_ref().map(ToString::to_string),
            clear: |flags| flags.$section.$option = None,
        }
    };
}

/// The options, in the order of the name.
const NAMED: [Named; 8] = [
    named!("", train_split.augment),
    named!("bs", batch.global_batch_size),
    named!("", sync.sync),
    named!("", sync.compress),
    named!("", optimizer.optimizer),
    named!("lr", optimizer.learning_rate),
    named!("wd", optimizer.weight_decay),
    named!("", compute.dtype),
];

/// The words of the options in `flags` that are not what they are by default, the other options
/// being as they are.
pub(super) fn changes(
    flags: &TrainArgs,
    supported: &[ModelOption],
    world_size: usize,
) -> Vec<String> {
    let changed = NAMED.iter().filter_map(
        |Named {
             prefix,
             value,
             clear,
         }| {
            let given = value(flags)?;
            let mut cleared = flags.clone();
            clear(&mut cleared);
            // Without the option the others may contradict each other: then they were chosen for
            // it.
            let default = Sections::decide(cleared, supported, world_size)
                .and_then(|sections| file::section::<TrainArgs>(&sections));
            let is_default = default.is_ok_and(|default| value(&default).as_ref() == Some(&given));
            (!is_default).then(|| format!("{prefix}{}", word(&given)))
        },
    );
    changed.collect()
}

/// `value` with letters that are plain in the name of a file.
fn word(value: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '.' {
            letter
        } else {
            '-'
        }
    };
    value.chars().map(plain).collect()
}
