//! Checks of training on several processes through the program `trainer`.
//!
//! In: the program, a tiny training run. Out: checks of equality, of a clean stop, of launchers that were misunderstood.

use std::fs;
use std::os::unix::fs::symlink;

use cluster::probe;

use super::Suite;
use crate::suite::run::{LIMIT_S, Run, arguments};
use crate::suite::{Check, check};

pub(super) const CHECKS: [Check<Suite>; 5] = [
    Check {
        claim: "a start that its launcher counts differently is refused with both numbers",
        needs_mpirun: false,
        run: refuses_misunderstood_launchers,
    },
    check(
        "launch starts ranks of this machine without ssh, a writable /tmp and HOME",
        launches_without_ssh,
    ),
    check(
        "training on 2, 3 and 4 ranks has the loss of training on 1, and only root writes",
        losses_agree,
    ),
    check(
        "SIGTERM to one rank stops all, and the resumed run ends with the same parameters",
        |suite| stops_and_resumes(suite, "TERM", 1),
    ),
    check(
        "SIGUSR1 to root stops all, and the resumed run ends with the same parameters",
        |suite| stops_and_resumes(suite, "USR1", 0),
    ),
];

/// Losses of different world sizes differ by the order of the sums alone.
const LOSS_TOLERANCE: f64 = 1e-3;

fn refuses_misunderstood_launchers(suite: &Suite) -> Result<(), String> {
    for (variable, tasks) in [("SLURM_NTASKS", "3"), ("OMPI_COMM_WORLD_SIZE", "4")] {
        let mut command = suite.alone(&suite.trainer, &arguments(&suite.folder.join(variable), 1));
        command.env(variable, tasks);
        let ended = suite.finish(command, variable, 60)?;
        ended.expect(
            matches!(ended.finished.code, Some(1 | 2)),
            "exit code 1 or 2",
        )?;
        let text = &ended.finished.text;
        let has_both = text.contains(variable) && has_number(text, tasks) && has_number(text, "1");
        ended.expect(
            has_both,
            &format!("a message with {variable}, {tasks} and 1"),
        )?;
    }
    Ok(())
}

fn launches_without_ssh(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "without-ssh");
    let mpirun = suite.mpirun.as_ref().ok_or("no mpirun")?;
    let programs = suite.folder.join("programs");
    let at = |error: std::io::Error| format!("{}: {error}", programs.display());
    fs::create_dir_all(&programs).map_err(at)?;
    for name in ["bash", "id", "sleep"] {
        let link = programs.join(name);
        let _ = fs::remove_file(&link);
        symlink(
            probe::program(name).ok_or_else(|| format!("no {name}"))?,
            link,
        )
        .map_err(at)?;
    }
    let words = [
        vec!["launch", "-n", "2", "--"]
            .into_iter()
            .map(str::to_owned)
            .collect(),
        arguments(&run.folder, 1),
    ];
    let mut command = suite.alone(&suite.trainer, &words.concat());
    command
        .env("PATH", &programs)
        .env("MPIRUN", mpirun.program())
        .env("TMPDIR", "/proc")
        .env_remove("HOME");
    suite
        .finish(command, "without-ssh", LIMIT_S)?
        .expect_success()?;
    run.parameter_hash().map(drop)
}

fn losses_agree(suite: &Suite) -> Result<(), String> {
    let alone = Run::new(suite, "alone");
    let ended = suite.finish(
        suite.alone(&suite.trainer, &arguments(&alone.folder, 1)),
        "alone",
        LIMIT_S,
    )?;
    ended.expect_success()?;
    let expected = alone.metrics(&ended)?;
    for ranks in 2..=4 {
        let run = Run::new(suite, &format!("ranks-{ranks}"));
        let ended = run.train(suite, ranks, 1, &[])?;
        run.parameter_hash()?;
        let metrics = run.metrics(&ended)?;
        // Were every rank to write, there would be a multiple of the lines.
        ended.expect(
            metrics.num_lines == expected.num_lines,
            &format!("{} lines of metrics", expected.num_lines),
        )?;
        let difference = (metrics.last_loss - expected.last_loss).abs() / expected.last_loss.abs();
        ended.expect(
            difference <= LOSS_TOLERANCE,
            &format!(
                "the loss {} of one rank within {LOSS_TOLERANCE}, not {}",
                expected.last_loss, metrics.last_loss
            ),
        )?;
    }
    Ok(())
}

fn stops_and_resumes(suite: &Suite, signal: &str, rank: usize) -> Result<(), String> {
    const RANKS: usize = 2;
    const EPOCHS: usize = 3;
    let undisturbed = Run::new(suite, &format!("undisturbed-{signal}"));
    undisturbed.train(suite, RANKS, EPOCHS, &[])?;
    let stopped = Run::new(suite, &format!("stopped-{signal}"));
    let words = arguments(&stopped.folder, EPOCHS);
    let ended = stopped
        .signalled(
            suite,
            RANKS,
            &words,
            || stopped.has_line(),
            &[(signal, rank)],
        )?
        .0;
    ended.expect_success()?;
    ended.expect(
        stopped.has_stopped_early()?,
        "stopped_early in summary.json",
    )?;
    let resumed = stopped.train(suite, RANKS, EPOCHS, &["--resume"])?;
    let (expected, got) = (undisturbed.parameter_hash()?, stopped.parameter_hash()?);
    resumed.expect(
        got == expected,
        &format!("parameter hash {expected}, not {got}"),
    )
}

/// Whether the number stands in the text by itself, not as part of a longer one.
fn has_number(text: &str, number: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit())
        .any(|digits| digits == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_inside_a_longer_one_does_not_count() {
        assert!(has_number(
            "SLURM_NTASKS says 3 tasks, the world has 1",
            "3"
        ));
        assert!(!has_number("step 31, 13 ranks", "3"));
    }
}
