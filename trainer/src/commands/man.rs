//! `trainer man` and `trainer completions`: writes pages about the flags, and shell completions.
//!
//! In: a directory, or a shell. Out: `trainer.1`, `trainer-train.1` and so on, or `flags.md` with
//! `--markdown`; the completions on standard output.
//! Invariant: the same definitions give the same bytes.

use std::fmt::Write;
use std::fs;
use std::io::{self, Write as _};

use anyhow::{Context, Result};
use clap::builder::PossibleValue;
use clap::{Arg, Command};
use clap_complete::aot;
use cluster::output::unless_reader_left;
use records::wrapped;

use crate::config::cli::{CliOf, CompletionsArgs, ManArgs};
use crate::task::Task;

/// Width of the texts below a command's flags in the page of all flags.
const PAGE_COLUMNS: usize = 100;

const FLAGS_PAGE: &str = "flags.md";

/// Prints the completions of a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions<T: Task>(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    let mut definitions = CliOf::<T::Args>::definitions(T::HAS_IMAGES);
    let program = definitions.get_name().to_owned();
    aot::generate(args.shell, &mut definitions, program, &mut script);
    unless_reader_left(io::stdout().write_all(&script)).context("completions: standard output")
}

/// Writes the pages about the flags.
///
/// # Errors
/// If the directory cannot be created or written.
pub fn man<T: Task>(args: &ManArgs) -> Result<()> {
    let directory = &args.directory;
    let named = || format!("man pages: {}", directory.display());
    fs::create_dir_all(directory).with_context(named)?;
    let definitions = CliOf::<T::Args>::definitions(T::HAS_IMAGES);
    if args.markdown {
        return fs::write(directory.join(FLAGS_PAGE), markdown(definitions)).with_context(named);
    }
    clap_mangen::generate_to(definitions, directory).with_context(named)
}

/// Returns the page of all commands and flags.
fn markdown(mut program: Command) -> String {
    program.build();
    let name = program.get_name();
    let mut page = format!(
        "# Flags\n\n`{name} man --markdown DIR` writes this page. \
         `{name} COMMAND --help` prints the same text.\n"
    );
    let mut earlier = Vec::new();
    for command in program.get_subcommands() {
        section(command, name, &mut page, &mut earlier);
    }
    page
}

/// Flags under one heading, and the command that lists them.
struct Group<'a> {
    command: String,
    heading: Option<&'a str>,
    flags: Vec<&'a Arg>,
}

/// Writes the section of a command, then the sections of its subcommands. A group of flags that an
/// earlier command also has becomes a link.
fn section<'a>(command: &'a Command, above: &str, page: &mut String, earlier: &mut Vec<Group<'a>>) {
    if command.get_name() == "help" {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let about = about.replace("\n\n", " ");
    let about = prose(about.trim_end_matches('.'));
    // Writing to a String does not fail.
    let _ = write!(page, "\n## {name}\n\n{about}.\n");
    let mut groups: Vec<Group> = Vec::new();
    for flag in command
        .get_arguments()
        .filter(|flag| flag.get_id() != "help")
    {
        let heading = flag.get_help_heading();
        match groups.iter_mut().find(|group| group.heading == heading) {
            Some(group) => group.flags.push(flag),
            None => groups.push(Group {
                command: name.clone(),
                heading,
                flags: vec![flag],
            }),
        }
    }
    // Flags without a heading come first.
    groups.sort_by_key(|group| group.heading.is_some());
    for group in groups {
        let heading = group.heading.unwrap_or("Flags");
        // `==` compares only the ids of flags.
        let is_equal = |other: &&Group| {
            let mut pairs = other.flags.iter().zip(&group.flags);
            other.flags.len() == group.flags.len()
                && pairs.all(|(a, b)| a == b && a.get_help() == b.get_help())
        };
        match earlier.iter().find(is_equal) {
            Some(Group { command, .. }) => {
                let anchor = command.replace(' ', "-");
                let _ = write!(page, "\n**{heading}**: as in [{command}](#{anchor})\n");
            }
            None => {
                if group.heading.is_some() {
                    let _ = write!(page, "\n**{heading}**\n");
                }
                table(&group.flags, page);
                earlier.push(group);
            }
        }
    }
    if let Some(details) = command.get_after_help() {
        page.push_str("\n```text\n");
        for line in details.to_string().trim_end().lines() {
            // Short lines keep their indentation.
            let text = match line.len() > PAGE_COLUMNS {
                true => wrapped(line, PAGE_COLUMNS).join("\n"),
                false => line.to_owned(),
            };
            let _ = writeln!(page, "{text}");
        }
        page.push_str("```\n");
    }
    for subcommand in command.get_subcommands() {
        section(subcommand, &name, page, earlier);
    }
}

/// Writes a table of flags, then a table of the flags' values that have help.
fn table(flags: &[&Arg], page: &mut String) {
    page.push_str("\n| flag | meaning | default |\n|---|---|---|\n");
    let mut values = String::new();
    for flag in flags {
        let help = flag
            .get_long_help()
            .or(flag.get_help())
            .map(ToString::to_string)
            .unwrap_or_default();
        let default = help
            .strip_suffix(']')
            .and_then(|help| help.rsplit_once(" [default: "));
        let (meaning, default) = match default {
            Some((meaning, default)) => (meaning, prose(default)),
            None => (
                help.strip_suffix(" [required]").unwrap_or(&help),
                "required".to_owned(),
            ),
        };
        let is_value = |value: &PossibleValue| value.get_name() == default;
        let default = if flag.get_possible_values().iter().any(is_value) {
            format!("`{default}`")
        } else {
            default
        };
        let usage = flag.to_string().replace('|', "\\|");
        let _ = writeln!(page, "| `{usage}` | {} | {default} |", prose(meaning));
        if flag.is_hide_possible_values_set() {
            continue;
        }
        let flag_name = usage.split([' ', '[']).next().unwrap_or_default();
        for value in flag.get_possible_values() {
            if let Some(help) = value.get_help().filter(|_| !value.is_hide_set()) {
                let help = prose(&help.to_string());
                let _ = writeln!(values, "| `{flag_name} {}` | {help} |", value.get_name());
            }
        }
    }
    if !values.is_empty() {
        let _ = write!(page, "\n| value | meaning |\n|---|---|\n{values}");
    }
}

/// Returns a help text for a table cell, with Markdown escaped outside code spans.
fn prose(text: &str) -> String {
    let mut cell = String::new();
    for (place, part) in text.split('`').enumerate() {
        let is_code = place % 2 == 1;
        if place > 0 {
            cell.push('`');
        }
        for c in part.chars() {
            match c {
                '|' => cell.push_str("\\|"),
                '\n' => cell.push(' '),
                '<' if !is_code => cell.push_str("&lt;"),
                '*' | '_' | '[' | ']' | '\\' if !is_code => cell.extend(['\\', c]),
                _ => cell.push(c),
            }
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_in_a_help_text_is_escaped_outside_of_code() {
        assert_eq!(prose("a <b>|c* [d]\ne"), "a &lt;b>\\|c\\* \\[d\\] e");
        assert_eq!(prose("`<b>|c*` <d>"), "`<b>\\|c*` &lt;d>");
    }
}
