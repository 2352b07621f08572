//! Tips for flags of other programs.
//!
//! In: clap's error about an unknown argument. Out: the error with a tip that names a flag of this
//! program.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::options::range_in_words;

/// Flags of PyTorch's and timm's scripts, Lightning, torchrun and Ultralytics, without dashes, and
/// the equivalents of this program.
const HABITS: &str = include_str!("habits.txt");

/// Returns names, separated by spaces, with their equivalent.
fn habits() -> impl Iterator<Item = (&'static str, &'static str)> {
    HABITS.lines().filter_map(|line| line.split_once(": "))
}

/// Endings of checkpoint files.
const WEIGHTS: [&str; 8] = [
    ".pth",
    ".pt",
    ".tar",
    ".ckpt",
    ".bin",
    ".pkl",
    ".th",
    ".safetensors",
];

/// Adds a tip to an error about an argument of another program. `definitions`: the commands and
/// flags of this program.
pub(super) fn explained(mut error: clap::Error, definitions: &Command) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let flag = argument.split(' ').next().unwrap_or(argument);
    if let Some(expected) = expected_value(&error, flag)
        && let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
    {
        let got = if value.is_empty() {
            "an empty value"
        } else {
            value
        };
        let message = format!("{flag}: expected {expected}, got {got}\n");
        return clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(definitions);
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    if let Some(tip) = tip(argument, definitions) {
        error.remove(ContextKind::SuggestedArg);
        let tip = StyledStr::from(format!("write {tip}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Returns the expected value of a flag, in the words of its range or of its parser.
fn expected_value(error: &clap::Error, flag: &str) -> Option<String> {
    let source = error.source()?;
    let range = || range_in_words(flag.trim_start_matches('-'));
    if source.is::<ParseFloatError>() {
        return Some(range().unwrap_or_else(|| "a number, such as 0.1".to_owned()));
    }
    match source
        .downcast_ref::<ParseIntError>()
        .map(ParseIntError::kind)
    {
        Some(IntErrorKind::PosOverflow) => Some("a smaller number".to_owned()),
        Some(_) => Some(range().unwrap_or_else(|| "a whole number from 0".to_owned())),
        None => {
            let text = source.to_string();
            let expected = text.strip_prefix("expected ")?.split(", got ").next();
            expected.map(str::to_owned)
        }
    }
}

fn tip(argument: &str, definitions: &Command) -> Option<String> {
    let name = argument.trim_start_matches('-');
    let name = name.split('=').next().unwrap_or(name).replace('_', "-");
    if !argument.starts_with('-') {
        let file = name.to_ascii_lowercase();
        return if file.ends_with(".csv") {
            Some("--log-steps without a file: it makes steps.csv in --output-dir".to_owned())
        } else if WEIGHTS.iter().any(|ending| file.ends_with(ending)) {
            Some(format!("--weights {argument}"))
        } else {
            argument
                .contains('/')
                .then(|| format!("--data-dir {argument}"))
        };
    }
    let habit = habits().find(|(names, _)| names.split(' ').any(|habit| habit == name));
    let has = |command: &Command| {
        let mut arguments = command.get_arguments();
        arguments.any(|argument| argument.get_long() == Some(&name))
    };
    habit.map(|(_, tip)| tip.to_owned()).or_else(|| {
        if argument.contains('_') && definitions.get_subcommands().any(has) {
            return Some(format!("--{name}"));
        }
        let of_train = definitions
            .find_subcommand("train")
            .filter(|train| has(train));
        of_train.map(|_| format!("--{name} for `train` (in a study: kind = \"train\")"))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::cli::Cli;

    fn refusal(words: &str) -> String {
        let definitions = Cli::command();
        let error = definitions
            .clone()
            .try_get_matches_from(words.split(' '))
            .unwrap_err();
        explained(error, &definitions).to_string()
    }

    #[test]
    fn flags_of_other_programs_are_answered_with_those_of_this_one() {
        for (words, expected) in [
            ("train --lr 0.1", "--learning-rate RATE"),
            ("train --batch-size 256", "--global-batch-size SAMPLES"),
            ("train --batch_size=256", "--global-batch-size SAMPLES"),
            ("train -b 256", "--global-batch-size SAMPLES"),
            ("train -j8", "--loader-threads THREADS"),
            ("train --wd 1e-4", "--weight-decay FACTOR"),
            ("train --learning_rate 0.1", "write --learning-rate"),
            ("train --gpus 4", "`launch -n N -- train …`"),
            ("train /data/imagenet", "--data-dir /data/imagenet"),
            ("train --resume last.pth.tar", "--weights last.pth.tar"),
            ("train --log-steps a.csv", "--log-steps without a file"),
            ("eval --amp", "--dtype bf16"),
            ("bench --epochs 3", "--epochs for `train`"),
        ] {
            let text = refusal(&format!("trainer {words}"));
            assert!(
                text.contains("tip: write") && text.contains(expected),
                "{words}: {text}"
            );
        }
        for (words, expected) in [
            (
                "--seed 1e9",
                "--seed: expected a whole number from 0, got 1e9\n",
            ),
            (
                "--epochs=",
                "--epochs: expected a whole number from 1, got an empty value",
            ),
            (
                "--threads 1e3",
                "--threads: expected a whole number from 1 to 1024, got 1e3",
            ),
            (
                "--learning-rate x",
                "--learning-rate: expected a number above 0, got x",
            ),
        ] {
            let text = refusal(&format!("trainer train {words}"));
            assert!(text.contains(expected), "{words}: {text}");
        }
        let text = refusal("trainer train --epoch 3");
        assert!(text.contains("'--epochs'"), "clap's own tip stays: {text}");
    }

    #[test]
    fn every_flag_of_an_answer_exists_and_no_habit_is_a_flag_of_train() {
        let definitions = Cli::command();
        let commands = definitions.get_subcommands();
        let all: Vec<&str> = commands
            .flat_map(Command::get_arguments)
            .filter_map(|flag| flag.get_long())
            .collect();
        let train = definitions.find_subcommand("train").unwrap();
        let of_train: Vec<&str> = train
            .get_arguments()
            .filter_map(|flag| flag.get_long())
            .collect();
        let mut seen = Vec::new();
        for (names, answer) in habits() {
            for word in answer
                .split([' ', '`', ','])
                .filter_map(|word| word.strip_prefix("--"))
                .filter(|word| !word.is_empty())
            {
                assert!(all.contains(&word), "--{word}");
            }
            for name in names.split(' ') {
                assert!(!of_train.contains(&name) && !seen.contains(&name), "{name}");
                seen.push(name);
            }
        }
    }
}
