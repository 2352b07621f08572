//! The commands that start other processes, and those that print the definitions of all flags, as typed on a login node.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use clap::CommandFactory;
use trainer::config::cli::Cli;

use crate::fixture::{program, told};

const PROGRAM: &str = env!("CARGO_BIN_EXE_trainer");

/// The program in a folder, outside of any job that surrounds the tests.
fn run(words: &[&str], folder: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = program();
    command
        .args(words)
        .current_dir(folder)
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command.output().unwrap()
}

/// Writes a program that says this.
fn stand_in(file: &Path, says: &str) {
    stand_in_that(file, &format!("echo '{says}'"));
}

/// Writes a program that does this.
fn stand_in_that(file: &Path, does: &str) {
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
    let output = run(
        &line.split_whitespace().collect::<Vec<_>>(),
        folder.path(),
        &[],
    );
    assert!(output.status.success(), "{}", told(&output));
    assert!(
        folder.path().join("out/summary.json").exists(),
        "{}",
        told(&output)
    );
}

#[test]
fn several_ranks_are_this_program_under_mpirun() {
    let folder = tempfile::tempdir().unwrap();
    let mpirun = folder.path().join("mpirun");
    stand_in(&mpirun, "mpirun (Open MPI) 4.1.4");
    let variables = [("MPIRUN", mpirun.to_str().unwrap())];
    let output = run(
        &[
            "launch",
            "-n",
            "2",
            "--dry-run",
            "--",
            "train",
            "--epochs",
            "1",
        ],
        folder.path(),
        &variables,
    );
    assert!(output.status.success(), "{}", told(&output));
    let script = String::from_utf8(output.stdout).unwrap();
    let line = script
        .lines()
        .find(|line| line.contains("mpirun -n 2"))
        .unwrap_or_else(|| panic!("{script}"));
    let own = Path::new(PROGRAM).canonicalize().unwrap();
    assert!(
        line.contains(&format!("{} train --epochs 1", own.display())),
        "{line}"
    );
    let output = run(
        &["launch", "-n", "2", "--", "train"],
        folder.path(),
        &[("MPIRUN", "/nonexistent")],
    );
    assert!(
        output.status.code() == Some(1) && told(&output).contains("not found in PATH"),
        "{}",
        told(&output)
    );
}

#[test]
fn a_job_of_slurm_runs_this_program() {
    let folder = tempfile::tempdir().unwrap();
    let words = [
        "slurm",
        "submit",
        "--ntasks-per-node",
        "2",
        "--dry-run",
        "--",
        "train",
        "--epochs",
        "1",
    ];
    let output = run(&words, folder.path(), &[]);
    assert!(output.status.success(), "{}", told(&output));
    let script = String::from_utf8(output.stdout).unwrap();
    let own = Path::new(PROGRAM).canonicalize().unwrap();
    assert!(
        script.contains(&format!("{} train --epochs 1", own.display())),
        "{script}"
    );
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
    stand_in(&folder.path().join("sbatch"), "");
    stand_in(&folder.path().join("scontrol"), "");
    // Slurm cannot signal a step that is only being started.
    stand_in_that(
        &folder.path().join("scancel"),
        &format!("echo \"$*\" >>{place}/asked; [ $(wc -l <{place}/asked) = 2 ]"),
    );
    let state = format!(
        "[ $(cat {place}/asked 2>/dev/null | wc -l) = 2 ] && state=COMPLETED || state=RUNNING"
    );
    stand_in_that(
        &folder.path().join("squeue"),
        &format!("{state}\necho \"12|$state{row}\""),
    );
    let path = format!("{place}:{}", std::env::var("PATH").unwrap());
    let output = run(
        &["slurm", "cancel", "12", "--wait", "60"],
        folder.path(),
        &[("PATH", &path)],
    );
    let text = told(&output);
    assert!(
        output.status.success()
            && text.contains("12: COMPLETED, stopped before its first step; nothing"),
        "{text}"
    );
    let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
    assert_eq!(asked, "--batch --signal=USR1 12\n".repeat(2));
}

#[test]
fn variables_that_change_what_is_measured_are_refused_before_a_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("s.toml"),
        "name = \"s\"\ntitle = \"t\"\nabout = \"a\"\n[[matrix]]\nbatch_size_per_rank = 8\n",
    )
    .unwrap();
    for words in [["study", "s.toml"], ["compare", "--rounds=1"]] {
        let output = run(&words, folder.path(), &[("LOCKSTEP_CPU", "portable")]);
        let text = told(&output);
        assert!(
            output.status.code() == Some(2) && text.contains("LOCKSTEP_CPU"),
            "{words:?}: {text}"
        );
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing is begun"
    );
}

#[test]
fn a_study_names_its_cells_from_its_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name = \"s\"\ntitle = \"S\"\nabout = \"s\"\n[[matrix]]\nranks = [1, 2]\nbatch_size_per_rank = 8\n";
    fs::write(folder.path().join("s.toml"), text).unwrap();
    let output = run(&["study", "s.toml", "--dry-run"], folder.path(), &[]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("2 cells"), "{}", told(&output));
}

#[test]
fn a_dry_run_of_a_study_refuses_keys_that_nobody_knows() {
    let folder = tempfile::tempdir().unwrap();
    let head = "name = \"s\"\ntitle = \"S\"\nabout = \"s\"\n";
    let text = format!("{head}[[matrix]]\nbatch_size_per_rank = 8\n");
    fs::write(folder.path().join("s.toml"), &text).unwrap();
    fs::write(
        folder.path().join("modle.toml"),
        format!("{text}modle = \"resnet8\"\n"),
    )
    .unwrap();
    for (words, expected) in [
        (&["modle.toml"][..], "modle: unknown key for bench"),
        (&["s.toml", "--set", "foo=2"], "foo: unknown key for bench"),
        (
            &["s.toml", "--set", "framework=jaxx"],
            "framework: expected one of lockstep, pytorch",
        ),
    ] {
        let output = run(
            &[&["study", "--dry-run"], words].concat(),
            folder.path(),
            &[],
        );
        assert!(
            output.status.code() == Some(2) && told(&output).contains(expected),
            "{words:?}: {}",
            told(&output)
        );
    }
    let words = ["study", "--dry-run", "s.toml", "--set", "framework=jax"];
    let output = run(&words, folder.path(), &[]);
    assert!(
        output.status.success() && told(&output).contains("peers/run.py jax"),
        "{}",
        told(&output)
    );
}

#[test]
fn wrong_usage_ends_with_code_2_and_names_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["launch", "--", "train"], "-n"),
        (
            &["launch", "-n", "0", "--", "train"],
            "expected a whole number from 1",
        ),
        (
            &["launch", "-n", "2", "--name", "x", "--", "train"],
            "--restarts",
        ),
        (&["slurm", "submit", "--", "train"], "--ntasks-per-node"),
        (&["study", "nowhere.toml"], "cannot read nowhere.toml"),
        (
            &["compare", "--models", "resnet21"],
            "model: expected resnet<6n+2>",
        ),
    ];
    for (words, expected) in cases {
        let output = run(words, folder.path(), &[]);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words:?}: {}",
            told(&output)
        );
        assert!(
            told(&output).contains(expected),
            "{words:?}: {}",
            told(&output)
        );
    }
}

#[test]
fn one_of_several_tasks_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let surroundings = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")];
    for words in [
        &["launch", "-n", "1", "--", "bench"][..],
        &["completions", "bash"],
        &["slurm", "status"],
    ] {
        let output = run(words, folder.path(), &surroundings);
        assert!(
            !output.status.success() && told(&output).contains("expected one process, got 2"),
            "{words:?}"
        );
    }
}

#[test]
fn bash_completes_commands_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("trainer.bash");
    fs::write(
        &script,
        run(&["completions", "bash"], folder.path(), &[]).stdout,
    )
    .unwrap();
    let offered = |line: &str| {
        // What bash does when TAB is pressed at the end of the line.
        let text = format!(
            "source '{}'\nCOMP_WORDS=({line})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _trainer trainer \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash")
            .args(["--norc", "-c", &text])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(
        offered("trainer train --ep")
            .lines()
            .any(|word| word == "--epochs"),
        "{}",
        offered("trainer train --ep")
    );
    assert!(
        offered("trainer la").lines().any(|word| word == "launch"),
        "{}",
        offered("trainer la")
    );
    assert!(
        offered("trainer slurm submit --ntasks")
            .lines()
            .any(|word| word == "--ntasks-per-node")
    );
}

#[test]
fn scripts_for_the_other_shells_are_right_where_these_are_installed() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, check) in [("zsh", "--no-exec"), ("fish", "--no-execute")] {
        let output = run(&["completions", shell], folder.path(), &[]);
        assert!(
            output.status.success() && told(&output).contains("epochs"),
            "{shell}: {}",
            told(&output)
        );
        let file = folder.path().join(shell);
        fs::write(&file, output.stdout).unwrap();
        if has_program(shell) {
            let checked = Command::new(shell).arg(check).arg(&file).output().unwrap();
            assert!(checked.status.success(), "{shell}: {}", told(&checked));
        }
    }
    assert_eq!(
        run(&["completions", "sh"], folder.path(), &[])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn every_command_has_a_man_page_that_man_can_show() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["man", "man1"], folder.path(), &[]);
    assert!(output.status.success(), "{}", told(&output));
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
            let shown = Command::new(program).args(words).output().unwrap();
            assert!(shown.status.success(), "{program}: {}", told(&shown));
        }
    }
}
