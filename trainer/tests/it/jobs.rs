//! Commands that start other processes or print the definitions of all flags, as on a login node.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::CommandFactory;
use tempfile::TempDir;
use trainer::config::cli::Cli;

use crate::fixture::{ended, ended_with, succeed, trainer};

const STUDY: &str = "name = \"s\"\ntitle = \"S\"\nabout = \"s\"\n[[matrix]]\nranks = [1, 2]\nbatch_size_per_rank = 8\n";

/// Returns the program with these words, in a folder.
fn within(folder: &TempDir, words: &str) -> Command {
    let mut command = trainer(words, &[]);
    command.current_dir(folder.path());
    command
}

/// Writes a shell script with this body.
fn stand_in(file: &Path, does: &str) {
    fs::write(file, format!("#!/bin/sh\n{does}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn has_program(name: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {name}")])
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

#[test]
fn one_rank_is_launched_without_a_launcher_and_trains() {
    let folder = tempfile::tempdir().unwrap();
    let line = "launch -n 1 -- train --epochs 1 --threads 1 --model resnet8 --shapes-train 16 \
                --shapes-test 8 --global-batch-size 8 --output-dir out";
    let text = ended_with(0, within(&folder, line));
    assert!(folder.path().join("out/summary.json").exists(), "{text}");
}

#[test]
fn a_job_that_loses_the_first_wish_to_stop_is_asked_again_and_so_is_its_script() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    fs::write(
        folder.path().join("summary.json"),
        r#"{"steps":0,"stopped_early":true}"#,
    )
    .unwrap();
    fs::write(folder.path().join("job-id"), "12\n").unwrap();
    let row = format!("|None|0:01|10:00|1|n1|night|{place}/job.sbatch");
    stand_in(&folder.path().join("sbatch"), "echo");
    stand_in(&folder.path().join("scontrol"), "echo");
    // The first `scancel` fails, because Slurm cannot signal a step that is still starting.
    stand_in(
        &folder.path().join("scancel"),
        &format!("echo \"$*\" >>{place}/asked; [ $(wc -l <{place}/asked) = 2 ]"),
    );
    let state = format!(
        "[ $(cat {place}/asked 2>/dev/null | wc -l) = 2 ] && state=COMPLETED || state=RUNNING"
    );
    stand_in(
        &folder.path().join("squeue"),
        &format!("{state}\necho \"12|$state{row}\""),
    );
    let path = format!("{place}:{}", std::env::var("PATH").unwrap());
    let mut cancel = within(&folder, "slurm cancel 12 --wait 60");
    cancel.env("PATH", path);
    let text = ended_with(0, cancel);
    assert!(
        text.contains("12: COMPLETED, stopped before its first step; nothing"),
        "{text}"
    );
    let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
    assert_eq!(asked, "--batch --signal=USR1 12\n".repeat(2));
}

#[test]
fn a_study_names_its_cells_from_its_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.toml"), STUDY).unwrap();
    let text = ended_with(0, within(&folder, "study s.toml --dry-run"));
    assert!(text.contains("2 cells"), "{text}");
}

#[test]
fn wrong_usage_ends_with_code_2_and_names_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("run")).unwrap();
    let with = |keys: &str| format!("{STUDY}kind = \"train\"\n{keys}");
    for (file, text) in [
        ("s.toml", STUDY),
        ("modle.toml", &format!("{STUDY}modle = \"resnet8\"\n")),
        ("run/run.toml", ""),
        ("bad.toml", &with("learning_rate = [0.1, -0.03]\n")),
        ("word.toml", &with("learning_rate = \"abc\"\n")),
        ("none.toml", &with("epochs = 0\n")),
        ("kind.toml", &format!("{STUDY}epochs = 1\n")),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    for (words, expected) in [
        ("launch -- train", "-n"),
        ("launch -n 0 -- train", "expected a whole number from 1"),
        ("launch -n 2 --name x -- train", "--restarts"),
        ("slurm submit -- train", "--ntasks-per-node"),
        ("study nowhere.toml", "cannot read nowhere.toml"),
        (
            "study --dry-run modle.toml",
            "unexpected argument '--modle'",
        ),
        (
            "study --dry-run s.toml --set foo=2",
            "unexpected argument '--foo'",
        ),
        (
            "study --dry-run modle.toml",
            "a similar argument exists: '--model'",
        ),
        ("study --dry-run kind.toml", "in a study: kind = \"train\""),
        ("study --dry-run bad.toml", "--learning-rate: expected"),
        ("study bad.toml", "-0.03"),
        (
            "study --dry-run word.toml",
            "expected a number above 0, got abc",
        ),
        ("study --dry-run none.toml", "--epochs: expected"),
        (
            "slurm submit --ntasks-per-node 2 --dry-run -- train --lr 1",
            "write --learning-rate RATE",
        ),
        (
            "slurm submit --ntasks-per-node 2 --dry-run -- train --global-batch-size 7",
            "does not divide among 2",
        ),
        (
            "slurm submit --ntasks-per-node 2 --dry-run -- eval --wieghts x",
            "unexpected argument '--wieghts'",
        ),
        ("study s.toml --output run", "is not a study's"),
        ("compare --models resnet21", "model: expected resnet<6n+2>"),
    ] {
        let text = ended_with(2, within(&folder, words));
        assert!(text.contains(expected), "{words}: {text}");
    }
    let files = fs::read_dir(folder.path().join("run")).unwrap();
    assert_eq!(files.count(), 1, "a study wrote into the folder of a run");
}

#[test]
fn a_job_with_absent_data_or_equal_tasks_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let line = "slurm submit --ntasks-per-node 1 --array 0-3 --dry-run -- train \
                --dataset image-folder --data-dir nope";
    let text = ended_with(0, within(&folder, line));
    for warning in ["nope does not exist", "all tasks run the same command"] {
        assert!(text.contains(warning), "{warning}: {text}");
    }
    let train = "kind = \"train\"\ndataset = \"image-folder\"\ndata-dir = \"nope\"\n";
    fs::write(folder.path().join("s.toml"), format!("{STUDY}{train}")).unwrap();
    let text = ended_with(0, within(&folder, "study s.toml --dry-run"));
    assert!(text.contains("nope does not exist"), "{text}");
    ended_with(2, within(&folder, "study s.toml"));
}

#[test]
fn a_job_that_slurm_rejects_leaves_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    stand_in(
        &folder.path().join("sbatch"),
        "echo no such partition >&2; exit 1",
    );
    let path = std::env::var("PATH").unwrap();
    for line in [
        "slurm submit --ntasks-per-node 1 --name night -- train",
        "slurm submit --ntasks-per-node 1 --name night --array 0-1 -- train --seed {task}",
    ] {
        let mut submit = within(&folder, line);
        submit.env("PATH", format!("{}:{path}", folder.path().display()));
        let text = ended_with(1, submit);
        assert!(text.contains("no such partition"), "{text}");
        assert!(!folder.path().join("runs").exists());
    }
}

#[test]
fn a_resume_that_names_no_run_and_no_option_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = ended_with(
        2,
        within(&folder, "train --resume --threads 1 --output-dir nope"),
    );
    assert!(text.contains("nope, which does not exist"), "{text}");
    assert!(!folder.path().join("nope").exists());
}

#[test]
fn several_ranks_need_mpirun() {
    let folder = tempfile::tempdir().unwrap();
    let mut launch = within(&folder, "launch -n 2 -- train");
    launch.env("MPIRUN", "/nonexistent");
    let text = ended_with(1, launch);
    assert!(text.contains("not found in PATH"), "{text}");
}

#[test]
fn one_of_several_tasks_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        "launch -n 1 -- bench",
        "completions bash",
        "slurm status",
        "report . --output report",
    ] {
        let mut command = within(&folder, words);
        command
            .env("OMPI_COMM_WORLD_SIZE", "2")
            .env("OMPI_COMM_WORLD_RANK", "0");
        let (code, text) = ended(command);
        assert!(
            code != Some(0) && text.contains("expected one process, got 2"),
            "{words}: {text}"
        );
    }
}

#[test]
fn bash_completes_commands_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("trainer.bash");
    fs::write(&script, succeed(within(&folder, "completions bash"))).unwrap();
    let offered = |line: &str| {
        // The script does the work of bash after TAB at the end of the line.
        let text = format!(
            "source '{}'\nCOMP_WORDS=({line})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _trainer trainer \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &text]);
        succeed(bash)
    };
    for (line, expected) in [
        ("trainer train --ep", "--epochs"),
        ("trainer la", "launch"),
        ("trainer slurm submit --ntasks", "--ntasks-per-node"),
    ] {
        let offered = offered(line);
        assert!(offered.lines().any(|word| word == expected), "{offered}");
    }
}

#[test]
fn scripts_for_the_other_shells_are_right_where_these_are_installed() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, check) in [("zsh", "--no-exec"), ("fish", "--no-execute")] {
        let script = succeed(within(&folder, &format!("completions {shell}")));
        assert!(script.contains("epochs"), "{shell}: {script}");
        let file = folder.path().join(shell);
        fs::write(&file, script).unwrap();
        if has_program(shell) {
            let mut checked = Command::new(shell);
            checked.arg(check).arg(&file);
            succeed(checked);
        }
    }
    ended_with(2, within(&folder, "completions sh"));
}

#[test]
fn every_command_has_a_man_page_that_man_can_show() {
    let folder = tempfile::tempdir().unwrap();
    ended_with(0, within(&folder, "man man1"));
    for command in Cli::command().get_subcommands() {
        let page = folder
            .path()
            .join(format!("man1/trainer-{}.1", command.get_name()));
        let text =
            fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".TH"), "{}", page.display());
    }
    let page = folder
        .path()
        .join("man1/trainer-launch.1")
        .display()
        .to_string();
    for (program, words) in [
        ("man", vec!["-l", &page]),
        ("mandoc", vec!["-T", "lint", "-W", "error", &page]),
    ] {
        if has_program(program) {
            let mut shown = Command::new(program);
            shown.args(words);
            succeed(shown);
        }
    }
}
