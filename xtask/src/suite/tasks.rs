//! Check of the example tasks: programs with other data, models and losses than the trainer.
//!
//! In: the programs next to the trainer. Out: a check for any launcher.

use super::start::Launcher;
use super::{Check, Checked, Suite};
use crate::cargo::TASKS;

pub(crate) const CHECKS: [Check; 1] = [(
    "programs of other tasks train on 2 ranks, stop by SIGTERM, resume to the undisturbed parameters, and refuse `predict`",
    tasks_resume,
)];

/// Options of each of [`TASKS`].
const OPTIONS: [&str; TASKS.len()] = [
    "--optimizer adamw --dtype bf16 --ema-decay 0.9",
    "--reduction exact --virtual-shards 4 --batch-norm local",
    "--monitor test-error --clip-grad-norm 1 --batch-norm sync --epochs 4",
];

fn tasks_resume(suite: &Suite) -> Checked {
    for (task, options) in TASKS.iter().zip(OPTIONS) {
        let run = |what: &str| {
            suite
                .run_of_task(task, &format!("{task}-{what}"))
                .with(options)
        };
        let expected = run("undisturbed").by(Launcher::Mpirun).trained_hash()?;
        let run = run("stopped");
        let (ended, _) = run.signalled(|| run.has_line(), &[("TERM", 1)])?;
        ended.expect_success()?;
        run.expect_stopped_with_checkpoint()?;
        run.resume()?;
        run.expect_hash(&expected)?;
        let words = ["predict", "absent.png", "--checkpoint", "absent"].map(str::to_owned);
        let refused = suite.on_ranks(Launcher::Mpirun, 1, &run.program, &words)?;
        let refused = suite.finish(refused, &format!("{task}-predict"))?;
        refused.expect_failure()?;
        refused.expect_text(&["predict: expected a program of image classifiers"])?;
    }
    Ok(())
}
