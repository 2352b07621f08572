//! Checks of starts under srun: one world over two nodes, no world at all, two jobs for one place.

use std::path::Path;

use super::{EPOCHS, NODES, Suite};
use crate::suite::launcher::Launcher;
use crate::suite::run::{QUICK, Run, arguments, disturbed, instead};
use crate::suite::{Check, Ended, check, checkpoints, same};

pub(super) const CHECKS: [Check<Suite>; 4] = [
    check(
        "srun trains on 2 nodes with 2 and 4 ranks to the parameters of mpirun",
        trains_like_mpirun,
    ),
    check(
        "tasks that srun starts as worlds of their own are refused with both numbers, and nothing is trained",
        separate_worlds_are_refused,
    ),
    check(
        "trainer doctor finds nothing red under srun on 2 nodes, and says what is when the tasks are worlds of their own",
        doctor_is_right,
    ),
    check(
        "a second job for an output directory in use is refused, and the first is not disturbed",
        second_job_is_refused,
    ),
];

fn trains_like_mpirun(suite: &Suite) -> Result<(), String> {
    for ranks in [2, 4] {
        let run = Run::new(suite, &format!("srun-{ranks}"));
        let ended = run.train(suite, ranks, EPOCHS, &QUICK)?;
        same(&run.name, suite.undisturbed()?, &run.parameter_hash()?)?;
        let manifest: String = run.file("manifest.json")?.split_whitespace().collect();
        ended.expect(
            manifest.contains(&format!("\"ranks\":{ranks},")),
            &format!("{ranks} ranks in {manifest}"),
        )?;
        let nodes = "\"nodes\":[\"n1\",\"n2\"]";
        ended.expect(manifest.contains(nodes), &format!("{nodes} in {manifest}"))?;
    }
    Ok(())
}

/// A library that takes no notice of Slurm starts a world of one in every task; Open MPI does when it does not see these. When
/// it does see them and no PMIx, it ends the program itself.
fn separate_worlds_are_refused(suite: &Suite) -> Result<(), String> {
    let unseen = ["-u", "SLURM_STEPID", "-u", "SLURM_NODELIST"].map(str::to_owned);
    let ours = [
        "SLURM_STEP_NUM_TASKS=2",
        "world of 1",
        "use srun --mpi=pmix",
    ];
    for (name, hidden, said) in [("separate", &unseen[..], &ours[..]), ("no-pmix", &[], &[])] {
        let run = Run::new(suite, name);
        let mut words = hidden.to_vec();
        words.push(suite.trainer().display().to_string());
        words.extend(arguments(&run.folder, 1));
        let command = suite.srun("none", NODES, Path::new("env"), &words);
        let ended = Ended::of(command, &suite.folder().join(format!("{name}.log")), 120)?;
        ended.expect(
            ended.finished.code.is_some_and(|code| code != 0),
            "an exit code that is not 0",
        )?;
        for part in said {
            ended.expect(
                ended.finished.text.contains(part),
                &format!("a message with `{part}`"),
            )?;
        }
        ended.expect(!run.folder.join("metrics.jsonl").exists(), "no training")?;
    }
    Ok(())
}

fn doctor_is_right(suite: &Suite) -> Result<(), String> {
    for (mpi, code, said) in [
        (suite.mpi.srun_kind(), 0, "2 ranks on 2 nodes"),
        ("none", 1, "FAIL"),
    ] {
        let output = suite.folder().join("doctored").display().to_string();
        let words = ["doctor", "--threads", "1", "--output-dir", &output].map(str::to_owned);
        let command = suite.srun(mpi, NODES, suite.trainer(), &words);
        let ended = Ended::of(
            command,
            &suite.folder().join(format!("doctor-{mpi}.log")),
            120,
        )?;
        ended.expect(
            ended.finished.code == Some(code),
            &format!("exit code {code}"),
        )?;
        for part in [said, "world", "data set"] {
            ended.expect(
                ended.finished.text.contains(part),
                &format!("`{part}` in the table"),
            )?;
        }
        ended.expect(!Path::new(&output).exists(), "nothing left behind")?;
    }
    Ok(())
}

fn second_job_is_refused(suite: &Suite) -> Result<(), String> {
    // Long enough for the second job to start meanwhile.
    const LONG: usize = 10 * EPOCHS;
    let alone = Run::new(suite, "in-use-alone");
    alone.train(&suite.mpi, NODES, LONG, &QUICK)?;
    let run = Run::new(suite, "in-use");
    let words = |run: &Run| {
        instead(
            arguments(&run.folder, LONG),
            &[&QUICK[..], &["--resume"]].concat(),
        )
    };
    // One rank on each node leaves room for another job of the same kind.
    let command = suite.on_ranks(NODES, suite.trainer(), &words(&run))?;
    let log = suite.folder().join("in-use-first.log");
    let start_second = |_| {
        let command = suite.on_ranks(NODES, suite.trainer(), &words(&run))?;
        Ended::of(
            command,
            Path::new(&suite.folder().join("in-use-second.log")),
            120,
        )
    };
    let (first, second) = disturbed(
        command,
        &log,
        || run.has_line(),
        "the first epoch's end",
        start_second,
    )?;
    let second = second?;
    first.expect_success()?;
    same(
        "the first job",
        &alone.parameter_hash()?,
        &run.parameter_hash()?,
    )?;
    checkpoints::whole(&run.folder)?;
    second.expect(
        second.finished.code.is_some_and(|code| code != 0),
        "an exit code that is not 0",
    )?;
    second.expect(
        second.finished.text.contains("in use by"),
        "a message with `in use by`",
    )
}
