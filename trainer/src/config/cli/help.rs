//! The list of commands in groups, and the short help of `-h`.
//!
//! In: definitions of commands. Out: definitions with other help. Invariant: `--help`, man pages
//! and completions have every flag.

use clap::Command;

/// The commands of the program, in the order of its help.
#[rustfmt::skip]
const GROUPS: [(&str, &[&str]); 3] = [
    ("Train", &["train", "eval", "predict", "watch", "report", "launch", "slurm"]),
    ("Measure", &["bench", "study", "compare", "predict-scaling", "netbench", "verify", "verify-run"]),
    ("Set up", &["doctor", "config", "shard", "hosts", "completions", "man"]),
];

/// Help of `-h`: the command, the flags that most people need, and examples.
type Short = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

#[rustfmt::skip]
const TRAIN: &[&str] = &[
    "recipe", "model", "dataset", "data-dir", "epochs", "global-batch-size", "optimizer", "learning-rate",
    "output-dir", "resume",
];

#[rustfmt::skip]
const SHORT: [Short; 6] = [
    ("train", TRAIN, &[
        "train --epochs 5",
        "launch -n 4 -- train --recipe cifar-resnet18 --data-dir data/cifar10",
        "train --resume --output-dir runs/resnet20-shapes-seed0",
    ]),
    ("config", TRAIN, &["config --recipe cifar-resnet18 --data-dir data/cifar10 > run.toml"]),
    ("eval", &[
        "checkpoint", "weights", "model", "dataset", "data-dir", "split", "batch-size-per-rank", "device",
        "threads", "json",
    ], &[
        "eval --checkpoint runs/resnet20-shapes-seed0",
        "eval --checkpoint runs/resnet20-shapes-seed0 --split train --json",
        "eval --weights a.pth --model resnet18 --dataset cifar10 --data-dir d",
    ]),
    ("launch", &["hosts", "restarts", "name", "dry-run"], &[
        "launch -n 4 -- train --epochs 10",
        "launch -n 8 --hosts a:4,b:4 -- train --dataset cifar10 --data-dir d",
        "launch -n 4 --restarts 3 --name long -- train --epochs 200",
    ]),
    ("slurm submit", &[
        "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "time", "partition", "account", "name",
        "requeue", "dry-run",
    ], &[
        "slurm submit --ntasks-per-node 8 --time 1:00:00 -- train --epochs 10",
        "slurm submit --nodes 2 --ntasks-per-node 8 --requeue -- train",
        "slurm submit --ntasks-per-node 4 --array 0-3 -- train --seed {task}",
    ]),
    ("study", &[
        "output", "only", "set", "repetitions", "no-compare", "dry-run", "again-disturbed", "no-quiet-check",
        "no-report",
    ], &[
        "study lab/studies/resnet44-scaling.toml --dry-run",
        "study lab/studies/resnet44-scaling.toml --set steps=5,ranks=[1,2]",
        "report runs/studies/resnet44-scaling",
    ]),
];

/// Returns the program with its commands in groups.
pub(super) fn grouped(program: Command) -> Command {
    let names = program
        .get_subcommands()
        .map(|command| command.get_name().len());
    let width = names.max().unwrap_or(0);
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        groups.push_str(&format!("\u{1b}[1m\u{1b}[4m{heading}:\u{1b}[0m\n"));
        let known = names
            .iter()
            .filter_map(|name| program.find_subcommand(name));
        for command in known.filter(|command| !command.is_hide_set()) {
            let about = command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            groups.push_str(&format!(
                "  \u{1b}[1m{:width$}\u{1b}[0m  {about}\n",
                command.get_name()
            ));
        }
        groups.push('\n');
    }
    program.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}\
         \u{1b}[1m\u{1b}[4mOptions:\u{1b}[0m\n{{options}}{{after-help}}"
    ))
}

/// Returns the program with the short help of its commands. Examples about data are only for a
/// program that `has_images`.
pub(super) fn short(program: Command, has_images: bool) -> Command {
    let name = program.get_name().to_owned();
    program.mut_subcommands(|command| shortened(command, &name, "", has_images))
}

fn shortened(command: Command, program: &str, above: &str, has_images: bool) -> Command {
    let path = format!("{above}{}", command.get_name());
    let Some((_, flags, examples)) = SHORT.iter().find(|(of, ..)| *of == path) else {
        let above = format!("{path} ");
        return command.mut_subcommands(|command| shortened(command, program, &above, has_images));
    };
    let examples = examples
        .iter()
        .filter(|example| has_images || !example.contains("data-dir"));
    let examples: String = examples
        .map(|example| format!("\n  {program} {example}"))
        .collect();
    command
        .mut_args(|flag| {
            let Some(long) = flag.get_long() else {
                return flag;
            };
            let takes_values = flag.get_action().takes_values();
            match flags.iter().position(|flag| *flag == long) {
                None => flag.hide(true),
                Some(place) => flag
                    .help_heading(None::<&'static str>)
                    .display_order(place)
                    .hide_possible_values(takes_values),
            }
        })
        .after_help(format!(
            "All flags: {program} {path} --help\nExamples:{examples}\n"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::Cli;

    fn definitions() -> Command {
        Cli::definitions(true).name("trainer")
    }

    fn expect_narrow(text: &str, columns: usize) {
        let mut wide = text.lines().filter(|line| line.chars().count() > columns);
        assert_eq!(wide.next(), None);
    }

    #[test]
    fn the_help_of_the_program_lists_each_command_once_on_one_line() {
        let text = definitions().render_help().to_string();
        let (commands, _) = text.split_once("Options:").unwrap();
        expect_narrow(commands, 80);
        let commands: Vec<String> = definitions()
            .get_subcommands()
            .map(|command| format!("  {} ", command.get_name()))
            .collect();
        for command in &commands {
            let lines = text
                .lines()
                .filter(|line| line.starts_with(command.as_str()));
            assert_eq!(lines.count(), 1, "{command}: {text}");
        }
        assert_eq!(
            text.lines().filter(|line| line.starts_with("  ")).count(),
            commands.len() + 2
        );
        let program_of_a_task = Cli::definitions(false).render_help().to_string();
        assert!(
            !program_of_a_task.contains("  predict "),
            "{program_of_a_task}"
        );
    }

    #[test]
    fn a_short_help_has_thirty_lines_and_names_only_flags_of_its_command() {
        for (path, flags, examples) in SHORT {
            let mut program = short(definitions(), true);
            program.build();
            let mut command = &mut program;
            for name in path.split(' ') {
                command = command.find_subcommand_mut(name).unwrap();
            }
            let text = command.render_help().to_string();
            assert!(
                text.lines().count() <= 30,
                "{path}: {}\n{text}",
                text.lines().count()
            );
            expect_narrow(&text, 100);
            for flag in flags {
                assert!(
                    text.contains(&format!("--{flag}")),
                    "{path}: {flag}\n{text}"
                );
            }
            for example in examples {
                let line = format!("  trainer {example}\n");
                assert!(text.contains(&line), "{path}: {example}");
                expect_narrow(&line, 80);
                let words = example.split(" > ").next().unwrap().split_whitespace();
                let parsed =
                    definitions().try_get_matches_from(["trainer"].into_iter().chain(words));
                assert!(parsed.is_ok(), "{example}: {parsed:?}");
            }
        }
        let program = short(Cli::definitions(false), false);
        let train = program
            .find_subcommand("train")
            .unwrap()
            .get_after_help()
            .unwrap();
        assert!(!train.to_string().contains("--data-dir"), "{train}");
    }

    #[test]
    fn the_long_help_of_each_command_has_a_hundred_columns() {
        fn check(command: &mut Command) {
            expect_narrow(&command.render_long_help().to_string(), 100);
            command.get_subcommands_mut().for_each(check);
        }
        let mut program = definitions();
        program.build();
        program.get_subcommands_mut().for_each(check);
    }
}
