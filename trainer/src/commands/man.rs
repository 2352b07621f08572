//! `trainer man` and `trainer completions`: the definitions of the flags as pages and as scripts of
//! shells.
//!
//! In: a directory, or a shell. Out: `trainer.1`, `trainer-train.1` and so on, or `flags.md` with
//! `--markdown`; the script on standard output.
//! Invariant: the same definitions give the same bytes.

use std::fmt::Write;
use std::fs;
use std::io::{self, Write as _};

use anyhow::{Context, Result};
use clap::{Arg, Command};
use clap_complete::aot;
use cluster::output::unless_reader_left;

use crate::config::cli::{CliOf, CompletionsArgs, ManArgs, Shell};
use crate::model::family::ModelFamily;

/// The page of Markdown.
const FLAGS_PAGE: &str = "flags.md";

/// Prints the script.
///
/// # Errors
/// When standard output takes no more.
pub fn completions<F: ModelFamily>(args: &CompletionsArgs) -> Result<()> {
    let shell = match args.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    let mut definitions = CliOf::<F::Args>::definitions();
    let program = definitions.get_name().to_owned();
    aot::generate(shell, &mut definitions, program, &mut script);
    unless_reader_left(io::stdout().write_all(&script)).context("completions: standard output")
}

/// Writes the pages.
///
/// # Errors
/// When the directory cannot be made or written.
pub fn man<F: ModelFamily>(args: &ManArgs) -> Result<()> {
    let directory = &args.directory;
    let named = || format!("man pages: {}", directory.display());
    fs::create_dir_all(directory).with_context(named)?;
    let definitions = CliOf::<F::Args>::definitions();
    if args.markdown {
        return fs::write(directory.join(FLAGS_PAGE), markdown(definitions)).with_context(named);
    }
    clap_mangen::generate_to(definitions, directory).with_context(named)
}

/// All commands and flags.
fn markdown(mut program: Command) -> String {
    program.build();
    let name = program.get_name();
    let mut page = format!(
        "# Every flag\n\n`{name} man --markdown DIR` writes this page from the definitions by which `{name}` reads its flags; \
         `{name} COMMAND --help` prints the same.\n"
    );
    let mut told = Vec::new();
    for command in program.get_subcommands() {
        sections(command, name, &mut page, &mut told);
    }
    page
}

/// A command's section, then those of its subcommands. `told` are the commands before it and their
/// flags.
fn sections<'a>(
    command: &'a Command,
    above: &str,
    page: &mut String,
    told: &mut Vec<(String, Vec<&'a Arg>)>,
) {
    if command.get_name() == "help" {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    // Writing to a String does not fail.
    let _ = write!(page, "\n## {name}\n\n{}.\n", prose(&about));
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| argument.get_id() != "help")
        .collect();
    match told
        .iter()
        .find(|(_, flags)| !arguments.is_empty() && *flags == arguments)
    {
        Some((other, _)) => {
            _ = write!(
                page,
                "\nIt takes the flags of [{other}](#{}).\n",
                other.replace(' ', "-")
            )
        }
        None => tables(&arguments, page),
    }
    if let Some(details) = command.get_after_help() {
        _ = write!(page, "\n```text\n{}\n```\n", details.to_string().trim_end());
    }
    told.push((name.clone(), arguments));
    for subcommand in command.get_subcommands() {
        sections(subcommand, &name, page, told);
    }
}

/// A table for each heading, first that of the flags without one.
fn tables(arguments: &[&Arg], page: &mut String) {
    let mut headings = vec![None];
    for argument in arguments {
        if !headings.contains(&argument.get_help_heading()) {
            headings.push(argument.get_help_heading());
        }
    }
    headings.retain(|heading| {
        arguments
            .iter()
            .any(|argument| argument.get_help_heading() == *heading)
    });
    for heading in headings {
        if let Some(heading) = heading {
            _ = write!(page, "\n**{heading}**\n");
        }
        page.push_str("\n| flag | what it does | default |\n|---|---|---|\n");
        for argument in arguments
            .iter()
            .filter(|argument| argument.get_help_heading() == heading)
        {
            let help = argument
                .get_long_help()
                .or(argument.get_help())
                .map(ToString::to_string)
                .unwrap_or_default();
            let (what, default) = match help
                .strip_suffix(']')
                .and_then(|help| help.rsplit_once(" [default: "))
            {
                Some((what, default)) => (what, prose(default)),
                None => (
                    help.strip_suffix(" [required]").unwrap_or(&help),
                    "required".to_owned(),
                ),
            };
            let flag = argument.to_string().replace('|', "\\|");
            _ = writeln!(
                page,
                "| `{flag}` | {}{} | {default} |",
                prose(what),
                values(argument)
            );
        }
    }
}

/// Returns the values that have their own help.
fn values(argument: &Arg) -> String {
    if argument.is_hide_possible_values_set() {
        return String::new();
    }
    let values = argument.get_possible_values();
    let told = values.iter().filter_map(|value| {
        let help = value.get_help().filter(|_| !value.is_hide_set())?;
        Some(format!(
            "<br>`{}`: {}",
            value.get_name(),
            prose(&help.to_string())
        ))
    });
    told.collect()
}

/// A text of `--help` in a cell: outside of code nothing in it means anything to Markdown.
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
    fn what_means_something_to_markdown_is_told_as_it_is_written() {
        assert_eq!(prose("a <b>|c* [d]\ne"), "a &lt;b>\\|c\\* \\[d\\] e");
        assert_eq!(prose("`<b>|c*` <d>"), "`<b>\\|c*` &lt;d>");
    }
}
