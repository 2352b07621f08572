//! Checks of starts under srun: one world over two nodes, separate worlds, two jobs in one
//! directory.

use std::path::Path;

use super::{EPOCHS, quick, undisturbed};
use crate::suite::start::Launcher;
use crate::suite::{Check, Checked, Suite};

pub(super) const CHECKS: [Check; 4] = [
    (
        "srun trains on 2 nodes with 2 and 4 ranks to the parameters of mpirun",
        trains_like_mpirun,
    ),
    (
        "tasks that srun starts as separate worlds are refused with both numbers, and nothing is trained",
        separate_worlds_are_refused,
    ),
    (
        "trainer doctor passes under srun on 2 nodes, and fails if the tasks are separate worlds",
        doctor_is_right,
    ),
    (
        "a second job for an output directory in use is refused, and the first is not disturbed",
        second_job_is_refused,
    ),
];

fn trains_like_mpirun(suite: &Suite) -> Checked {
    for ranks in [2, 4] {
        let run = quick(suite, &format!("srun-{ranks}")).on(ranks);
        let ended = run.train()?;
        run.expect_hash(&undisturbed(suite)?)?;
        let manifest: String = run.file("manifest.json")?.split_whitespace().collect();
        for part in [
            format!("\"ranks\":{ranks},"),
            "\"nodes\":[\"n1\",\"n2\"]".to_owned(),
        ] {
            let message = format!("{part} in {manifest}");
            ended.expect(manifest.contains(&part), &message)?;
        }
    }
    Ok(())
}

/// An MPI library that ignores Slurm starts a world of one in every task. Open MPI does so without
/// these variables; with them and without PMIx it ends the program itself.
fn separate_worlds_are_refused(suite: &Suite) -> Checked {
    let unseen = ["-u", "SLURM_STEPID", "-u", "SLURM_NODELIST"];
    let refusal = [
        "SLURM_STEP_NUM_TASKS=2",
        "world of 1",
        "use srun --mpi=pmix",
    ];
    for (name, hidden, parts) in [
        ("separate", &unseen[..], &refusal[..]),
        ("no-pmix", &[], &[]),
    ] {
        let run = quick(suite, name);
        let mut words: Vec<String> = hidden.iter().map(|word| (*word).to_owned()).collect();
        words.push(suite.trainer.display().to_string());
        words.extend(run.words.clone());
        let command = suite.srun("none", 2, Path::new("env"), &words)?;
        let ended = suite.finish(command, name)?;
        ended.expect_failure()?;
        ended.expect_text(parts)?;
        ended.expect(!run.has_line(), "no training")?;
    }
    Ok(())
}

fn doctor_is_right(suite: &Suite) -> Checked {
    for (mpi, code, part) in [
        (suite.srun_kind(), 0, "2 ranks on 2 nodes"),
        ("none", 1, "FAIL"),
    ] {
        let output = suite.folder.join("doctored");
        let words = ["doctor", "--threads", "1", "--output-dir"].map(str::to_owned);
        let words = [&words[..], &[output.display().to_string()]].concat();
        let command = suite.srun(mpi, 2, &suite.trainer, &words)?;
        let ended = suite.finish(command, &format!("doctor-{mpi}"))?;
        ended.expect_code(code)?;
        ended.expect_text(&[part, "world", "data set"])?;
        ended.expect(!output.exists(), "no output directory")?;
    }
    Ok(())
}

fn second_job_is_refused(suite: &Suite) -> Checked {
    // Long enough for the second job to start before the end of the first.
    let long = |name| suite.run(name).epochs(10 * EPOCHS).quick();
    let expected = long("in-use-alone").by(Launcher::Mpirun).trained_hash()?;
    let run = long("in-use").with("--resume");
    let start_second = |_| suite.finish(run.command()?, "in-use-second");
    // One rank on each node leaves room for another job of the same kind.
    let has_line = || run.has_line();
    let (first, second) = suite.disturbed(run.command()?, &run.name, has_line, start_second)?;
    let second = second?;
    first.expect_success()?;
    run.expect_hash(&expected)?;
    run.checkpoints()?;
    second.expect_failure()?;
    second.expect_text(&["in use by"])
}
