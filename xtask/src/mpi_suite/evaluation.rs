//! Checks of commands that evaluate or measure on several processes.
//!
//! In: tiny training runs. Out: checks that root's checkpoint is used and differences are refused.

use std::fs;
use std::process::Command;

use cluster::json;
use cluster::mpirun::{self, Make};

use crate::suite::run::Run;
use crate::suite::{Check, Checked, Ended, Suite};

pub(super) const CHECKS: [Check; 4] = [
    (
        "an evaluation on ranks with other disks than root's measures root's checkpoint",
        root_is_measured,
    ),
    (
        "ranks that evaluate or measure different things end together, named in one message",
        differences_are_named,
    ),
    (
        "a rank that is stopped (SIGSTOP) in an evaluation ends all within the timeout, named",
        lost_rank_is_named,
    ),
    (
        "work for one process is refused on two ranks alike, in one message",
        one_process_is_expected,
    ),
];

/// Losses of different world sizes differ only by the order of the sums.
const LOSS_TOLERANCE: f64 = 1e-5;

fn loss(ended: &Ended) -> Checked<f64> {
    ended.expect_success()?;
    let json = ended.text().lines().rfind(|line| line.starts_with('{'));
    let loss = json.and_then(|json| json::number(json, "loss"));
    ended.expect(loss.is_some(), "a loss")?;
    Ok(loss.unwrap_or(f64::NAN))
}

/// Ranks 0 and 1 work in folders 0 and 1, each with another run under the same name.
fn root_is_measured(suite: &Suite) -> Checked {
    let base = suite.folder.join("disks");
    for seed in ["0", "1"] {
        let run = suite.run(&format!("disks/{seed}/run")).on(1);
        run.with(&format!("--seed {seed}")).train()?;
    }
    let trainer = suite.trainer.display();
    let line = |folder: &str| {
        let base = base.display();
        format!("cd '{base}'/{folder} && exec {trainer} eval --checkpoint run --threads 1 --json")
    };
    let alone = |seed: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &line(seed)]);
        mpirun::forget_surrounding_job(&mut command);
        loss(&suite.finish(command, "eval-alone")?)
    };
    let expected = alone("0")?;
    let other = alone("1")?;
    let rank = format!("${}", suite.rank_variable());
    let ended = suite.finish(suite.shell(2, line(&rank))?, "eval-disks")?;
    let got = loss(&ended)?;
    let is_near = |loss: f64| (got - loss).abs() <= LOSS_TOLERANCE * loss;
    ended.expect(
        is_near(expected) && !is_near(other),
        &format!("root's loss {expected}, not {got}"),
    )
}

fn differences_are_named(suite: &Suite) -> Checked {
    const BENCH: &str = "bench --steps 1 --warmup-steps 0 --threads 1 --device flex --model";
    let run = suite.run("stranger-eval").on(1);
    run.train()?;
    let trainer = suite.trainer.display();
    let rank = suite.rank_variable();
    let checkpoint = run.folder.display();
    let eval = format!("exec {trainer} eval --threads 1 --checkpoint {checkpoint}");
    for (line, named) in [
        (format!("{eval} --shapes-seed ${rank}"), "data.shapes-seed"),
        (
            format!("{eval} --batch-size-per-rank 1${rank}"),
            "--batch-size-per-rank",
        ),
        (
            format!("exec {trainer} {BENCH} resnet$((8 + 6 * {rank}))"),
            "model.model",
        ),
        (
            format!("LOCKSTEP_SUM_STAGES=$((1 + {rank})) exec {trainer} {BENCH} resnet8"),
            "LOCKSTEP_ variables",
        ),
    ] {
        let ended = suite.finish(suite.shell(2, line)?, "stranger-evaluation")?;
        ended.expect_failure()?;
        ended.expect_text(&[named, "of rank 1 differs from root's"])?;
        ended.expect_one_message()?;
    }
    Ok(())
}

fn lost_rank_is_named(suite: &Suite) -> Checked {
    let run = suite.run("lost-eval").on(1);
    run.train()?;
    // So many images that the evaluation takes longer than the signal.
    let words = ["eval", "--threads", "1", "--timeout", "4", "--checkpoint"];
    let mut words = words.map(str::to_owned).to_vec();
    words.push(run.folder.display().to_string());
    words.extend(["--shapes-test", "40000"].map(str::to_owned));
    let evaluation = Run {
        words,
        name: "lost-eval-log".to_owned(),
        ..run.on(2)
    };
    let log = evaluation.log();
    let has_begun = "samples  40,000 of shapes test";
    let is_time = || fs::read_to_string(&log).is_ok_and(|text| text.contains(has_begun));
    let (ended, _) = evaluation.signalled(is_time, &[("STOP", 1)])?;
    ended.expect_failure()?;
    ended.expect_text(&["rank 1 does not answer"])
}

fn one_process_is_expected(suite: &Suite) -> Checked {
    let trainer = suite.trainer.display();
    for words in [
        "predict --checkpoint nowhere nothing.png",
        "verify --quick",
        "predict-scaling --ranks 8 --network 10gbe",
        "report nowhere --output nothing",
    ] {
        let ended = suite.finish(
            suite.shell(2, format!("exec {trainer} {words}"))?,
            "one-process",
        )?;
        ended.expect_failure()?;
        let text = ended.text();
        ended.expect(
            text.contains("expected one process, got 2") || text.contains("got 2 ranks"),
            "both numbers",
        )?;
        let messages = text.lines().filter(|line| line.starts_with("error"));
        // A process that never joined cannot end the others; only Open MPI's launcher does.
        let most = match suite.mpirun()?.make {
            Make::OpenMpi => 1,
            Make::Mpich | Make::Other => 2,
        };
        ended.expect((1..=most).contains(&messages.count()), "one message")?;
    }
    Ok(())
}
