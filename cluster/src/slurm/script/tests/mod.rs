//! The batch script's text for many requests.

mod course;

use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::failure::Outcome;

/// The request of a command line; words are separated by blanks, `_` stands for a blank inside one.
fn read(line: &str) -> Outcome<Request> {
    let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
    crate::slurm::request::tests::read(&words)
}

fn script_of(line: &str) -> String {
    let text = text(&read(line).unwrap(), Path::new("/opt/trainer"));
    let checked = Command::new("bash")
        .args(["-n", "-c", &text])
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}\n{text}",
        String::from_utf8_lossy(&checked.stderr)
    );
    text
}

fn refusal(line: &str) -> String {
    let failure = read(line).unwrap_err();
    assert_eq!(failure.exit_code(), 2, "{failure}");
    failure.to_string()
}

fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|found| found.trim() == *line),
            "no line `{line}` in:\n{text}"
        );
    }
}

#[test]
fn every_resource_is_asked_for_on_a_line_of_its_own() {
    let text = script_of(
        "--nodes 2 --ntasks-per-node 8 --cpus-per-task 4 --gpus-per-task 1 --mem 32G --time 1-00:00:00 --partition p \
         --account a --qos q --constraint c&d --exclusive --dependency afterok:3 --name night --requeue --warn-seconds 300 \
         -- train --output-dir /d/run --epochs 3",
    );
    assert_lines(
        &text,
        &[
            "#SBATCH --job-name          night",
            "#SBATCH --nodes             2",
            "#SBATCH --ntasks-per-node   8",
            "#SBATCH --cpus-per-task     4",
            "#SBATCH --gpus-per-task     1",
            "#SBATCH --mem               32G",
            "#SBATCH --time              1-00:00:00",
            "#SBATCH --partition         p",
            "#SBATCH --account           a",
            "#SBATCH --qos               q",
            "#SBATCH --constraint        c&d",
            "#SBATCH --exclusive",
            "#SBATCH --dependency        afterok:3",
            "#SBATCH --requeue",
            "#SBATCH --signal            USR1@300",
            "#SBATCH --open-mode         append",
            "#SBATCH --output            /d/run/slurm-%j.out",
            "srun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=cores --cpus-per-task=4 \\",
            "/opt/trainer train --epochs 3 \\",
            "--output-dir \"$run_dir\" --resume </dev/null &",
        ],
    );
}

#[test]
fn the_plain_script_is_short() {
    let text = script_of("--ntasks-per-node 1 --name plain -- train");
    assert_lines(
        &text,
        &[
            "#SBATCH --no-requeue",
            "#SBATCH --signal            USR1@120",
        ],
    );
    for absent in [
        "scontrol requeue",
        "restarts_left",
        "module",
        "--array",
        "apptainer",
    ] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
}

#[test]
fn other_commands_get_their_own_words_alone() {
    let text = script_of("--ntasks-per-node 2 --name b -- bench --steps 3");
    assert_lines(&text, &["/opt/trainer bench --steps 3 </dev/null &"]);
    for absent in ["--resume", "--signal", "summary.json", "#SBATCH --requeue"] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
    for flag in ["--requeue", "--restarts 2", "--warn-seconds 9"] {
        assert!(
            refusal(&format!("--ntasks-per-node 2 {flag} -- bench")).contains("`bench` has none")
        );
    }
}

#[test]
fn odd_words_reach_the_trainer_as_they_are() {
    let text = script_of(
        "--ntasks-per-node 1 --name odd --env A=$HOME,B=it's -- train --data-dir a_b --note it's_\"$(x)\"",
    );
    assert_lines(
        &text,
        &[
            "export A='$HOME'",
            r"export B='it'\''s'",
            r#"/opt/trainer train --data-dir 'a b' --note 'it'\''s "$(x)"' \"#,
        ],
    );
}

#[test]
fn what_means_something_to_a_shell_reaches_srun_and_module_as_it_is() {
    let text = script_of(
        "--ntasks-per-node 1 --name q --cpu-bind cores&touch --mpi a|b --module gcc/12,x(1) -- bench --steps 3",
    );
    let srun = "srun --mpi='a|b' --kill-on-bad-exit=1 --cpu-bind='cores&touch' \\";
    assert_lines(&text, &[srun, "module load gcc/12 'x(1)' || exit 1"]);
}

#[test]
fn a_directory_with_blanks_is_quoted_for_sbatch_and_for_bash() {
    let text = script_of("--ntasks-per-node 1 -- train --output-dir /d/a_b");
    assert_lines(
        &text,
        &[
            "#SBATCH --output            \"/d/a b/slurm-%j.out\"",
            "run_dir='/d/a b'",
        ],
    );
}

#[test]
fn modules_and_a_container_surround_the_trainer() {
    let image = std::env::temp_dir();
    let image = image.to_str().unwrap();
    let line = format!(
        "--ntasks-per-node 1 --gpus-per-task 1 --name c --module gcc/12,openmpi/4 --container {image} -- train --output-dir /d/c"
    );
    let text = script_of(&line);
    let apptainer = format!(
        "apptainer exec --nv --bind \"$PWD\",\"$run_dir\" {} \\",
        image.trim_end_matches('/')
    );
    assert_lines(
        &text,
        &["module load gcc/12 openmpi/4 || exit 1", &apptainer],
    );
    assert!(
        text.find("trap ask_to_stop") < text.find("module load"),
        "a signal may come meanwhile:\n{text}"
    );
}

#[test]
fn every_task_of_an_array_has_its_directory_and_its_number() {
    let line = "--ntasks-per-node 1 --name sweep --array 0-3 --requeue --restarts 1 -- train --seed {task} --note=a_{task}.{task}";
    let text = script_of(line);
    let runs = std::env::current_dir().unwrap().join("runs/sweep");
    assert_lines(
        &text,
        &[
            "#SBATCH --array             0-3",
            &format!(
                "#SBATCH --output            {}-%a/slurm-%A_%a.out",
                runs.display()
            ),
            "job=\"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\"",
            &format!("run_dir={}-\"$SLURM_ARRAY_TASK_ID\"", runs.display()),
            "/opt/trainer train --seed \"$SLURM_ARRAY_TASK_ID\" '--note=a '\"$SLURM_ARRAY_TASK_ID\".\"$SLURM_ARRAY_TASK_ID\" \\",
            "scontrol requeue \"$job\" || { say \"could not be queued again\"; exit 1; }",
        ],
    );
    let directories: Vec<PathBuf> = read(line)
        .unwrap()
        .directories()
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    assert_eq!(directories.len(), 4);
    assert!(directories[3].ends_with("runs/sweep-3"));
}

#[test]
fn what_slurm_would_misunderstand_is_refused() {
    for (line, expected) in [
        ("--nodes 2 -- train", "--ntasks-per-node <N>"),
        ("--ntasks-per-node 1", "<COMMAND>"),
        (
            "--ntasks-per-node 1 --partition a_b -- train",
            "expected one word",
        ),
        (
            "--ntasks-per-node 1 --account x#y -- train",
            "expected one word",
        ),
        ("--ntasks-per-node 1 --env 1A=2 -- train", "'1A=2'"),
        ("--ntasks-per-node 1 --time soon -- train", "got `soon`"),
        (
            "--ntasks-per-node 1 --time 00:02:00 -- train",
            "nothing would be trained",
        ),
        (
            "--ntasks-per-node 1 --time 999999999999999999-0 -- train",
            "got `999999999999999999-0`",
        ),
        (
            "--ntasks-per-node 1 --warn-seconds 70000 -- train",
            "at most 65535",
        ),
        (
            "--ntasks-per-node 1 --container /no/image.sif -- train",
            "does not exist",
        ),
        ("--ntasks-per-node 1 -- train --seed {task}", "add --array"),
        (
            "--ntasks-per-node 1 --array 0-1 -- train --output-dir r{task}",
            "leave it out",
        ),
        ("--ntasks-per-node 1 -- train --output-dir a\"b", "misread"),
        ("--ntasks-per-node 1 -- train --output-dir a,b", "misread"),
    ] {
        let got = refusal(line);
        assert!(got.contains(expected), "{line}: {got}");
    }
}

#[test]
fn a_warning_needs_room_in_every_notation_of_time() {
    for time in ["4", "3:01", "00:03:01", "0-1", "1-0:1", "1-00:00:00"] {
        read(&format!("--ntasks-per-node 1 --time {time} -- train")).unwrap();
    }
    for time in ["3", "2:59", "00:03:00", "0-0:3"] {
        assert!(
            refusal(&format!("--ntasks-per-node 1 --time {time} -- train"))
                .contains("nothing would be trained")
        );
    }
    read("--ntasks-per-node 1 --time 3 --warn-seconds 60 -- train").unwrap();
}
