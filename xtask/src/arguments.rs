//! The command line: one declaration per command gives both its parser and its help.
//!
//! In: the words after the command's name. Out: [`Arguments`].
//! Invariant: nothing is ignored; an unknown, repeated or incomplete argument is refused with a remedy.

use std::collections::BTreeMap;

use crate::failure::{Failure, Outcome};

/// One command of `cargo xtask`.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// What the help adds to the summary.
    pub(crate) details: &'static str,
    /// What the command is about: the first word must be one of these; empty for commands without a subject.
    pub(crate) subjects: &'static [&'static str],
    /// Commands of its own: the first word must be the last word of one's name; empty for most.
    pub(crate) parts: &'static [Command],
    /// What a word that belongs to no flag is, for commands that take one.
    pub(crate) object: Option<&'static str>,
    pub(crate) flags: &'static [Flag],
    /// What the words after `--` are, for commands that pass them on.
    pub(crate) passed_on: Option<&'static str>,
    pub(crate) run: fn(Arguments) -> Outcome,
}

/// One flag of a command.
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    /// What its value is called, for flags that take one.
    pub(crate) value: Option<&'static str>,
    pub(crate) help: &'static str,
}

/// A command line that was understood completely.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    values: BTreeMap<&'static str, String>,
    /// What the command is about, for commands with a subject.
    pub(crate) subject: String,
    /// The word that belongs to no flag.
    pub(crate) object: Option<String>,
    /// The words after `--`.
    pub(crate) passed_on: Vec<String>,
}

impl Command {
    /// Prints the help or runs the command.
    pub(crate) fn dispatch(&self, words: &[String]) -> Outcome {
        let part = |word: &String| self.parts.iter().find(|part| part.own_name() == word);
        if let Some((first, rest)) = words.split_first()
            && let Some(part) = part(first)
        {
            return part.dispatch(rest);
        }
        let own = words.iter().take_while(|word| *word != "--");
        if own.clone().any(|word| word == "--help" || word == "-h") {
            print!("{}", self.help());
            return Ok(());
        }
        if !self.parts.is_empty() {
            let names: Vec<&str> = self.parts.iter().map(Command::own_name).collect();
            return Err(self.without_subject(&names));
        }
        (self.run)(self.parse(words)?)
    }

    /// The name without that of the command it is a part of.
    fn own_name(&self) -> &'static str {
        self.name.rsplit(' ').next().unwrap_or(self.name)
    }

    /// The text of `--help`.
    pub(crate) fn help(&self) -> String {
        let mut text = format!("{}\n\nUsage: cargo xtask {}", self.summary, self.name);
        if !self.subjects.is_empty() {
            text.push_str(&format!(" {}", self.subjects.join("|")));
        }
        if !self.parts.is_empty() {
            text.push_str(" COMMAND [arguments]\n\nCommands:\n");
            for part in self.parts {
                text.push_str(&format!("  {:<8}{}\n", part.own_name(), part.summary));
            }
            text.push_str(&format!("\n{}\n", self.details));
            return text;
        }
        for flag in self.flags {
            text.push_str(&format!(" [{}]", flag.form()));
        }
        if let Some(what) = self.object {
            text.push_str(&format!(" {what}"));
        }
        if let Some(what) = self.passed_on {
            text.push_str(&format!(" [-- {what}]"));
        }
        text.push_str("\n\nFlags:\n");
        for flag in self.flags {
            text.push_str(&format!("  {:<22}{}\n", flag.form(), flag.help));
        }
        text.push_str(&format!("  {:<22}print this text\n", "--help"));
        if !self.details.is_empty() {
            text.push_str(&format!("\n{}\n", self.details));
        }
        text
    }

    pub(crate) fn parse(&self, words: &[String]) -> Outcome<Arguments> {
        let mut arguments = Arguments::default();
        let mut words = words.iter();
        if !self.subjects.is_empty() {
            let subject = words.next().filter(|word| self.subjects.contains(&word.as_str()));
            arguments.subject = subject.ok_or_else(|| self.without_subject(self.subjects))?.clone();
        }
        while let Some(word) = words.next() {
            if word == "--" && self.passed_on.is_some() {
                arguments.passed_on = words.cloned().collect();
                break;
            }
            if self.object.is_some() && arguments.object.is_none() && !word.starts_with('-') {
                arguments.object = Some(word.clone());
                continue;
            }
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) if name.starts_with('-') => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let flag = self.flags.iter().find(|flag| flag.name == name).ok_or_else(|| self.unknown(word))?;
            let value = match (flag.value, attached) {
                (None, None) => String::new(),
                (None, Some(value)) => {
                    return Err(Failure::Usage(format!("{name} takes no value, got `{value}`: write plain {name}")));
                }
                (Some(_), Some(value)) => value,
                (Some(what), None) => words
                    .next()
                    .filter(|value| !value.starts_with('-'))
                    .cloned()
                    .ok_or_else(|| Failure::Usage(format!("{name} needs a value: write {name} {what}")))?,
            };
            if arguments.values.insert(flag.name, value).is_some() {
                return Err(Failure::Usage(format!("{name} is given twice: keep one")));
            }
        }
        Ok(arguments)
    }

    fn without_subject(&self, known: &[&str]) -> Failure {
        let known = known.join(", ");
        Failure::Usage(format!("`{}` needs a subject as its first word, expected one of: {known}", self.name))
    }

    fn unknown(&self, word: &str) -> Failure {
        let remedy = match self.passed_on {
            Some(what) => format!("{what} come after `--`, as in: cargo xtask {} -- {word}", self.name),
            None => format!("`cargo xtask {} --help` lists what is known", self.name),
        };
        Failure::Usage(format!("unknown argument `{word}` for `{}`: {remedy}", self.name))
    }
}

impl Flag {
    fn form(&self) -> String {
        match self.value {
            Some(what) => format!("{} {what}", self.name),
            None => self.name.to_owned(),
        }
    }
}

impl Arguments {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A count of at least one.
    pub(crate) fn count(&self, name: &str) -> Outcome<Option<usize>> {
        let Some(text) = self.value(name) else { return Ok(None) };
        match text.parse::<usize>() {
            Ok(count) if count > 0 => Ok(Some(count)),
            _ => Err(Failure::Usage(format!("{name}: expected a whole number from 1, got `{text}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Command = Command {
        name: "example",
        summary: "An example.",
        details: "",
        subjects: &[],
        parts: &[],
        object: None,
        flags: &[
            Flag { name: "--ranks", value: Some("N"), help: "how many" },
            Flag { name: "--no-install", value: None, help: "install nothing" },
        ],
        passed_on: Some("trainer arguments"),
        run: |_| Ok(()),
    };

    fn parse(line: &str) -> Outcome<Arguments> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        EXAMPLE.parse(&words)
    }

    fn refusal(line: &str) -> String {
        let failure = parse(line).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        failure.to_string()
    }

    #[test]
    fn words_after_two_dashes_are_passed_on_untouched() {
        let arguments = parse("--ranks 3 -- --ranks 5 -- --help").unwrap();
        assert_eq!(arguments.count("--ranks").unwrap(), Some(3));
        assert_eq!(arguments.passed_on, ["--ranks", "5", "--", "--help"]);
    }

    #[test]
    fn a_subject_comes_first_and_is_one_of_the_commands() {
        let command = Command { subjects: &["this", "that"], ..EXAMPLE };
        let parse = |words: &[&str]| command.parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        let arguments = parse(&["that", "--ranks", "2"]).unwrap();
        assert_eq!((arguments.subject.as_str(), arguments.value("--ranks")), ("that", Some("2")));
        for words in [&[][..], &["other"], &["--ranks", "2"]] {
            assert!(parse(words).unwrap_err().to_string().contains("this, that"));
        }
        assert!(command.help().contains("example this|that [--ranks N]"));
    }

    #[test]
    fn a_command_with_parts_leads_to_one_of_them() {
        const PART: Command =
            Command { name: "example part", run: |_| Err(Failure::Failed("ran".to_owned())), ..EXAMPLE };
        const WHOLE: Command = Command { parts: &[PART], flags: &[], ..EXAMPLE };
        let dispatch = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            WHOLE.dispatch(&words).map_err(|failure| failure.to_string())
        };
        assert_eq!(dispatch("part --ranks 2"), Err("ran".to_owned()));
        assert!(dispatch("part --rank 2").unwrap_err().contains("`example part`"));
        assert!(dispatch("other").unwrap_err().contains("expected one of: part"));
        assert!(WHOLE.help().contains("example COMMAND") && WHOLE.help().contains("  part    An example."));
    }

    #[test]
    fn one_word_without_a_flag_is_taken_where_the_command_has_a_use_for_it() {
        let command = Command { object: Some("JOB"), ..EXAMPLE };
        let parse = |words: &[&str]| command.parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&["--no-install", "12"]).unwrap().object.as_deref(), Some("12"));
        assert_eq!(parse(&["12", "--ranks", "2"]).unwrap().object.as_deref(), Some("12"));
        assert!(parse(&["12", "13"]).unwrap_err().to_string().contains("`13`"));
        assert!(command.help().contains("[--no-install] JOB"));
        assert!(refusal("12").contains("`12`"));
    }

    #[test]
    fn a_value_may_be_attached_by_an_equals_sign() {
        assert_eq!(parse("--ranks=4").unwrap().count("--ranks").unwrap(), Some(4));
    }

    #[test]
    fn an_unknown_argument_is_refused_and_shown_where_it_belongs() {
        assert!(refusal("--epochs 5").contains("cargo xtask example -- --epochs"));
    }

    #[test]
    fn repeated_incomplete_and_superfluous_values_are_refused() {
        assert!(refusal("--ranks 1 --ranks 2").contains("given twice"));
        assert!(refusal("--ranks").contains("--ranks N"));
        assert!(refusal("--ranks --no-install").contains("--ranks N"));
        assert!(refusal("--no-install=yes").contains("takes no value"));
    }

    #[test]
    fn a_count_of_zero_is_refused() {
        let failure = parse("--ranks 0").unwrap().count("--ranks").unwrap_err();
        assert!(failure.to_string().contains("got `0`"));
    }

    #[test]
    fn the_help_shows_every_flag() {
        let help = EXAMPLE.help();
        assert!(help.contains("Usage: cargo xtask example [--ranks N] [--no-install] [-- trainer arguments]"));
        assert!(help.contains("install nothing"));
    }
}
