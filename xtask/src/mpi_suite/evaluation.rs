//! Checks of commands that measure or name, on several processes: root's checkpoint is the one, and what differs is refused.
//!
//! In: the program, two tiny training runs. Out: checks.

use std::fs;
use std::path::Path;

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Check, Ended, check};
use cluster::json;
use cluster::mpirun::Make;

pub(super) const CHECKS: [Check<Suite>; 4] = [
    check(
        "an evaluation on ranks with other disks than root's measures root's checkpoint",
        root_is_measured,
    ),
    check(
        "ranks told to evaluate or measure different things end all, named in one message",
        strangers_are_named,
    ),
    check(
        "a rank that is stopped (SIGSTOP) in an evaluation ends all within the timeout, named",
        lost_rank_is_named,
    ),
    check(
        "work for one process is refused on two ranks alike, in one message",
        one_process_is_expected,
    ),
];

/// Losses of different world sizes differ by the order of the sums alone.
const LOSS_TOLERANCE: f64 = 1e-5;

/// A line of the shell on two ranks.
fn on_two_ranks(suite: &Suite, name: &str, line: String) -> Result<Ended, String> {
    let command = suite.on_ranks(2, Path::new("/bin/sh"), &["-c".to_owned(), line])?;
    suite.finish(command, name, LIMIT_S)
}

fn loss(ended: &Ended) -> Result<f64, String> {
    ended.expect_success()?;
    let json = ended
        .finished
        .text
        .lines()
        .rfind(|line| line.starts_with('{'))
        .unwrap_or_default();
    let loss = json::number(json, "loss");
    ended.expect(loss.is_some(), "a loss")?;
    Ok(loss.unwrap_or(f64::NAN))
}

/// Ranks 0 and 1 stand in folders 0 and 1, each with a run of its own under the same name.
fn root_is_measured(suite: &Suite) -> Result<(), String> {
    let base = suite.folder.join("disks");
    for seed in ["0", "1"] {
        let folder = base.join(seed);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let run = Run {
            name: format!("disk-{seed}"),
            folder: folder.join("run"),
        };
        run.train(suite, 1, 1, &["--seed", seed])?;
    }
    let words = "eval --checkpoint run --threads 1 --json".to_owned();
    let (trainer, variable) = (suite.trainer.display(), suite.rank_variable());
    let alone = |seed: &str| {
        let line = format!("cd '{}/{seed}' && exec {trainer} {words}", base.display());
        loss(&suite.finish(
            suite.alone(Path::new("/bin/sh"), &["-c".to_owned(), line]),
            "eval-alone",
            LIMIT_S,
        )?)
    };
    let (expected, other) = (alone("0")?, alone("1")?);
    let line = format!(
        "cd '{}'/${variable} && exec {trainer} {words}",
        base.display()
    );
    let ended = on_two_ranks(suite, "eval-disks", line)?;
    let got = loss(&ended)?;
    let is_near = |loss: f64| (got - loss).abs() <= LOSS_TOLERANCE * loss;
    ended.expect(
        is_near(expected) && !is_near(other),
        &format!("root's loss {expected}, not {got}"),
    )
}

fn strangers_are_named(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "stranger-eval");
    run.train(suite, 1, 1, &[])?;
    let (trainer, variable, folder) = (
        suite.trainer.display(),
        suite.rank_variable(),
        run.folder.display(),
    );
    let measured = "bench --steps 1 --warmup-steps 0 --threads 1 --device flex --model";
    let switched =
        format!("LOCKSTEP_SUM_STAGES=$((1 + {variable})) exec {trainer} {measured} resnet8");
    for (name, words, named) in [
        (
            "test",
            format!("eval --threads 1 --checkpoint {folder} --shapes-seed ${variable}"),
            "data.shapes-seed",
        ),
        (
            "batch",
            format!("eval --threads 1 --checkpoint {folder} --batch-size-per-rank 1${variable}"),
            "--batch-size-per-rank",
        ),
        (
            "bench",
            format!("{measured} resnet$((8 + 6 * {variable}))"),
            "model.model",
        ),
    ]
    .map(|(name, words, named)| (name, format!("exec {trainer} {words}"), named))
    .into_iter()
    .chain([("switch", switched, "LOCKSTEP_ variables")])
    {
        let ended = on_two_ranks(suite, &format!("stranger-{name}"), words)?;
        ended.expect(ended.finished.code != Some(0), "an exit code that is not 0")?;
        let text = &ended.finished.text;
        ended.expect(
            text.contains(named) && text.contains("of rank 1 differs from root's"),
            named,
        )?;
        ended.expect(text.matches("error (rank").count() == 1, "one message")?;
    }
    Ok(())
}

fn lost_rank_is_named(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "lost-eval");
    run.train(suite, 1, 1, &[])?;
    let folder = run.folder.display();
    let line = format!("eval --threads 1 --timeout 4 --checkpoint {folder} --shapes-test 40000");
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    // The images are drawn, and the many of them are measured for longer than the signal takes.
    let log = suite.folder.join(format!("{}.log", run.name));
    let is_time = || fs::read_to_string(&log).is_ok_and(|text| text.contains("shapes test: drawn"));
    let ended = run.signalled(suite, 2, &words, is_time, &[("STOP", 1)])?.0;
    ended.expect(ended.finished.code != Some(0), "an exit code that is not 0")?;
    ended.expect(
        ended.finished.text.contains("rank 1 does not answer"),
        "the rank's name",
    )
}

fn one_process_is_expected(suite: &Suite) -> Result<(), String> {
    let trainer = suite.trainer.display();
    for words in [
        "predict --checkpoint nowhere nothing.png",
        "verify --quick",
        "predict-scaling --ranks 8 --network 10gbe",
        "report nowhere --output nothing",
    ] {
        let name = words.split(' ').next().unwrap_or_default();
        let ended = on_two_ranks(
            suite,
            &format!("alone-{name}"),
            format!("exec {trainer} {words}"),
        )?;
        ended.expect(
            matches!(ended.finished.code, Some(1 | 2)),
            "exit code 1 or 2",
        )?;
        let text = &ended.finished.text;
        ended.expect(
            text.contains("expected one process, got 2") || text.contains("got 2 ranks"),
            "both numbers",
        )?;
        let num_messages = text
            .lines()
            .filter(|line| line.starts_with("error"))
            .count();
        // A process that never joined cannot end the others; of the launchers only Open MPI's does.
        let may_speak_each = suite
            .mpirun
            .as_ref()
            .is_some_and(|mpirun| mpirun.make() != Make::OpenMpi);
        ended.expect(
            num_messages == 1 || may_speak_each && num_messages == 2,
            "one message",
        )?;
    }
    Ok(())
}
