//! The batch script's text for many requests.

mod course;

use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::failure::Outcome;

/// Reads a request: words are separated by blanks, and `_` is a blank inside a word.
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
    let error = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{error}\n{text}");
    text
}

/// Expects these lines in the script of a request, and none of the texts in it.
fn expect(line: &str, lines: &[&str], absent: &[&str]) {
    let text = script_of(line);
    for line in lines {
        let is_there = text.lines().any(|found| found.trim() == *line);
        assert!(is_there, "no line `{line}` in:\n{text}");
    }
    for absent in absent {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
}

#[test]
fn every_resource_has_a_line() {
    expect(
        "--nodes 2 --ntasks-per-node 8 --cpus-per-task 4 --gpus-per-task 1 --mem 32G --time 1-00:00:00 --partition p \
         --account a --qos q --constraint c&d --exclusive --dependency afterok:3 --name night --requeue --warn-seconds 300 \
         -- train --output-dir /d/run --epochs 3",
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
        &[],
    );
}

#[test]
fn a_script_has_only_the_requested_parts() {
    expect(
        "--ntasks-per-node 1 --name plain -- train",
        &[
            "#SBATCH --no-requeue",
            "#SBATCH --signal            USR1@120",
        ],
        &[
            "scontrol requeue",
            "restarts_left",
            "module",
            "--array",
            "apptainer",
        ],
    );
    expect(
        "--ntasks-per-node 2 --name b -- bench --steps 3",
        &["/opt/trainer bench --steps 3 </dev/null &"],
        &["--resume", "--signal", "summary.json", "#SBATCH --requeue"],
    );
}

#[test]
fn special_characters_reach_the_trainer_srun_module_and_sbatch_unchanged() {
    expect(
        "--ntasks-per-node 1 --name odd --env A=$HOME,B=it's -- train --data-dir a_b --note it's_\"$(x)\"",
        &[
            "export A='$HOME'",
            r"export B='it'\''s'",
            r#"/opt/trainer train --data-dir 'a b' --note 'it'\''s "$(x)"' \"#,
        ],
        &[],
    );
    expect(
        "--ntasks-per-node 1 --name q --cpu-bind cores&touch --mpi a|b --module gcc/12,x(1) -- bench --steps 3",
        &[
            "srun --mpi='a|b' --kill-on-bad-exit=1 --cpu-bind='cores&touch' \\",
            "module load gcc/12 'x(1)' || exit 1",
        ],
        &[],
    );
    expect(
        "--ntasks-per-node 1 -- train --output-dir /d/a_b",
        &[
            "#SBATCH --output            \"/d/a b/slurm-%j.out\"",
            "run_dir='/d/a b'",
        ],
        &[],
    );
}

#[test]
fn modules_and_a_container_surround_the_trainer() {
    let image = std::env::temp_dir();
    let image = image.to_str().unwrap();
    let line = format!(
        "--ntasks-per-node 1 --gpus-per-task 1 --name c --module gcc/12,openmpi/4 --container {image} -- train --output-dir /d/c"
    );
    let apptainer = format!(
        "apptainer exec --nv --bind \"$PWD\",\"$run_dir\" {} \\",
        image.trim_end_matches('/')
    );
    let module = "module load gcc/12 openmpi/4 || exit 1";
    expect(&line, &[module, &apptainer], &[]);
    let text = script_of(&line);
    // A signal may come meanwhile.
    assert!(text.find("trap ask_to_stop") < text.find("module load"));
}

#[test]
fn every_task_of_an_array_has_its_directory_and_its_number() {
    let line = "--ntasks-per-node 1 --name sweep --array 0-3 --requeue --restarts 1 -- train --seed {task} --note=a_{task}.{task}";
    let runs = std::env::current_dir().unwrap().join("runs/sweep");
    let runs = runs.display();
    expect(
        line,
        &[
            "#SBATCH --array             0-3",
            &format!("#SBATCH --output            {runs}-%a/slurm-%A_%a.out"),
            "job=\"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\"",
            &format!("run_dir={runs}-\"$SLURM_ARRAY_TASK_ID\""),
            "/opt/trainer train --seed \"$SLURM_ARRAY_TASK_ID\" '--note=a '\"$SLURM_ARRAY_TASK_ID\".\"$SLURM_ARRAY_TASK_ID\" \\",
            "scontrol requeue \"$job\" || { say \"could not be queued again\"; exit 1; }",
        ],
        &[],
    );
    let directories = read(line).unwrap().directories();
    let expected = PathBuf::from(format!("{runs}-3"));
    assert_eq!((directories.len(), &directories[3].1), (4, &expected));
}

#[test]
fn requests_that_slurm_would_misunderstand_are_refused() {
    for (line, expected) in [
        ("--nodes 2 -- train", "--ntasks-per-node <N>"),
        ("--ntasks-per-node 1", "<COMMAND>"),
        ("--ntasks-per-node 1 --requeue -- bench", "`bench` has none"),
        (
            "--ntasks-per-node 1 --restarts 2 -- bench",
            "`bench` has none",
        ),
        (
            "--ntasks-per-node 1 --warn-seconds 9 -- bench",
            "`bench` has none",
        ),
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
        let failure = read(line).unwrap_err();
        let text = failure.to_string();
        assert_eq!(failure.exit_code(), 2, "{text}");
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn a_warning_needs_time_in_every_notation() {
    for (time, is_enough) in [
        ("4", true),
        ("3:01", true),
        ("00:03:01", true),
        ("0-1", true),
        ("1-0:1", true),
        ("1-00:00:00", true),
        ("3 --warn-seconds 60", true),
        ("3", false),
        ("2:59", false),
        ("00:03:00", false),
        ("0-0:3", false),
    ] {
        let request = read(&format!("--ntasks-per-node 1 --time {time} -- train"));
        let refusal = request.err().map(|failure| failure.to_string());
        assert_eq!(refusal.is_none(), is_enough, "{time}: {refusal:?}");
        assert!(is_enough || refusal.unwrap().contains("nothing would be trained"));
    }
}
