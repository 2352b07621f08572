//! Checks of starts, and of training on several processes.
//!
//! In: a tiny training run. Out: checks of equality, and of launchers that were misunderstood.

use std::fs;
use std::os::unix::fs::symlink;

use cluster::json;
use cluster::probe;

use crate::at;
use crate::suite::run::Run;
use crate::suite::{Check, Checked, Ended, Suite};

pub(super) const CHECKS: [Check; 3] = [
    (
        "a start that its launcher counts differently is refused with both numbers",
        refuses_misunderstood_launchers,
    ),
    (
        "launch starts ranks of this machine without ssh, a writable /tmp and HOME",
        launches_without_ssh,
    ),
    (
        "training on 2, 3 and 4 ranks has the loss of training on 1, and only root writes",
        losses_agree,
    ),
];

/// Losses of different world sizes differ only by the order of the sums.
const LOSS_TOLERANCE: f64 = 1e-3;

fn refuses_misunderstood_launchers(suite: &Suite) -> Checked {
    for (variable, tasks) in [("SLURM_NTASKS", "3"), ("OMPI_COMM_WORLD_SIZE", "4")] {
        let run = suite.run(variable);
        let mut command = suite.alone(&run.words);
        command.env(variable, tasks);
        let ended = suite.finish(command, variable)?;
        ended.expect_failure()?;
        let numbers: Vec<&str> = ended.text().split(|c: char| !c.is_ascii_digit()).collect();
        let has_both = numbers.contains(&tasks) && numbers.contains(&"1");
        ended.expect(has_both, &format!("a message with {tasks} and 1"))?;
        ended.expect_text(&[variable])?;
    }
    Ok(())
}

fn launches_without_ssh(suite: &Suite) -> Checked {
    let run = suite.run("without-ssh");
    let programs = suite.folder.join("programs");
    let _ = fs::remove_dir_all(&programs);
    fs::create_dir_all(&programs).map_err(at(&programs))?;
    for name in ["bash", "id", "sleep"] {
        let program = probe::program(name).ok_or_else(|| format!("no {name}"))?;
        symlink(program, programs.join(name)).map_err(at(&programs))?;
    }
    let mut command = run.launch();
    command
        .env("PATH", &programs)
        .env("MPIRUN", &suite.mpirun()?.program)
        .env("TMPDIR", "/proc")
        .env_remove("HOME");
    suite.succeed(command, "without-ssh")?;
    run.hash().map(drop)
}

/// Returns the number of lines in `metrics.jsonl`, and the last loss.
fn metrics(run: &Run<'_>, ended: &Ended) -> Checked<(usize, f64)> {
    let text = run.file("metrics.jsonl")?;
    let mut lines = text.lines().rev();
    let loss = lines.find_map(|line| json::number(line, "train_loss"));
    ended.expect(loss.is_some(), "a train_loss in metrics.jsonl")?;
    Ok((text.lines().count(), loss.unwrap_or(f64::NAN)))
}

fn losses_agree(suite: &Suite) -> Checked {
    suite.mpirun()?;
    let alone = suite.run("alone");
    let ended = suite.succeed(suite.alone(&alone.words), "alone")?;
    let (num_lines, loss) = metrics(&alone, &ended)?;
    for ranks in 2..=4 {
        let run = suite.run(&format!("ranks-{ranks}")).on(ranks);
        let ended = run.train()?;
        run.hash()?;
        let (got_lines, got) = metrics(&run, &ended)?;
        // If every rank wrote, there would be a multiple of the lines.
        ended.expect(
            got_lines == num_lines,
            &format!("{num_lines} lines of metrics"),
        )?;
        ended.expect(
            (got - loss).abs() <= LOSS_TOLERANCE * loss.abs(),
            &format!("the loss {loss} of one rank within {LOSS_TOLERANCE}, not {got}"),
        )?;
    }
    Ok(())
}
