//! Checks of synchronisation on several processes: equal bits, and errors that name the rank at
//! fault.
//!
//! In: a tiny training run. Out: checks.

use std::fs;
use std::process::Command;

use cluster::json;
use cluster::mpirun::Mpirun;

use crate::at;
use crate::suite::run::{EXACT, Run};
use crate::suite::{Check, Checked, Stop, Suite, same};

pub(super) const CHECKS: [Check; 8] = [
    (
        "exact reduction gives the same parameter hash on 1, 2, 3 and 4 ranks",
        exact_on_any_number_of_ranks,
    ),
    (
        "overlap, reductions and parameter servers on separate ranks have the same bits, so have reductions of ranks on devices",
        methods_agree,
    ),
    (
        "verify-run finds a run of two ranks equal on two, and reports another seed's step and tensor with exit code 3",
        repetition_is_equal,
    ),
    (
        "a rank with another seed, model, way to synchronise or data ends all, named in one message",
        differences_are_named,
    ),
    (
        "a rank that is stopped (SIGSTOP) ends all within the timeout, named in one message",
        |suite| lost_rank_is_named(suite, "STOP", "rank 1 does not answer", ""),
    ),
    (
        "servers in worker processes are refused if MPI lets one thread call at a time; on separate ranks they train",
        servers_without_threads,
    ),
    (
        "a rank that is slower by more than the timeout is waited for while it makes steps",
        slow_rank_is_waited_for,
    ),
    (
        "a rank that is killed (SIGKILL) ends all, named, wherever ranks update",
        |suite| {
            let named = Mpirun::words_of_a_kill(suite.mpirun()?);
            lost_rank_is_named(suite, "KILL", named, "")?;
            lost_rank_is_named(suite, "KILL", named, ON_DEVICE)
        },
    ),
];

/// Flags of ranks that update on their devices, here CPUs.
const ON_DEVICE: &str = "--batch-norm local --device flex --update device";

fn exact_on_any_number_of_ranks(suite: &Suite) -> Checked {
    let hash = |ranks: usize| {
        let run = suite.run(&format!("exact-{ranks}")).on(ranks);
        run.with(EXACT).with("--augment crop-flip").trained_hash()
    };
    let expected = hash(1)?;
    (2..=4).try_for_each(|ranks| same(&format!("{ranks} ranks"), &expected, &hash(ranks)?))
}

fn methods_agree(suite: &Suite) -> Checked {
    let hash = |ranks: usize, flags: &str| {
        let name = format!("method-{}", flags.replace(' ', ""));
        let run = suite.run(&name).on(ranks);
        run.with("--batch-norm local").with(flags).trained_hash()
    };
    // Two terms have one order, so that all sums are equal.
    let expected = hash(2, "")?;
    for (ranks, flags) in [
        (2, "--overlap off"),
        (2, "--reduction ring"),
        (2, "--reduction halving-doubling"),
        (2, "--reduction mpi"),
        (2, "--sync parameter-server"),
        (3, "--sync parameter-server --server-placement own"),
        (2, "--sync async-parameter-server --staleness 0"),
    ] {
        same(flags, &expected, &hash(ranks, flags)?)?;
    }
    // Other roundings than in main memory.
    let on_devices = |flags: &str| hash(2, &format!("{ON_DEVICE} {flags}"));
    let expected = on_devices("")?;
    for flags in ["--reduction ring", "--reduction mpi"] {
        same(flags, &expected, &on_devices(flags)?)?;
    }
    hash(3, "--sync async-parameter-server --servers 2")?;
    hash(3, "--sync local-sgd --every 2")?;
    Ok(())
}

fn repetition_is_equal(suite: &Suite) -> Checked {
    let run = suite.run("repeated");
    run.train()?;
    let trainer = suite.trainer.display();
    let line = format!("exec {trainer} verify-run {}", run.folder.display());
    let repeat = || suite.finish(suite.shell(2, line.clone())?, "repetition");
    let ended = repeat()?;
    ended.expect_success()?;
    ended.expect_text(&["equal: 5 steps"])?;
    let file = run.folder.join("run.toml");
    let options = run.file("run.toml")?;
    let changed = options.replace("\nseed = 0\n", "\nseed = 1\n");
    fs::write(&file, changed).map_err(at(&file))?;
    let ended = repeat()?;
    ended.expect_code(3)?;
    ended.expect_text(&["different from step 0 on"])
}

fn differences_are_named(suite: &Suite) -> Checked {
    let rank = suite.rank_variable();
    for (flag, named) in [
        (format!("--seed ${rank}"), "run.seed of rank 1"),
        (
            format!("--model resnet$((8 + 6 * {rank}))"),
            "model.model of rank 1",
        ),
        (
            format!("--sync $(test ${rank} = 0 && echo parameter-server || echo allreduce)"),
            "sync.server-placement of rank 1 differs from root's",
        ),
        (
            format!("--shapes-train $((202 + {rank}))"),
            "of rank 1 differs from root's: expected 202, got 203",
        ),
    ] {
        let run = suite.run("stranger").with(&flag).with("--timeout 4");
        let ended = suite.finish(suite.shell(2, run.line(""))?, "stranger")?;
        ended.expect_failure()?;
        ended.expect_text(&[named])?;
        ended.expect_one_message()?;
    }
    Ok(())
}

/// Returns `MPI_THREAD_SERIALIZED` for any request.
const SERIALIZED: &str = "int PMPI_Init_thread(int *, char ***, int, int *);
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *got) {
    (void)wanted; return PMPI_Init_thread(argc, argv, 2, got); }
";

fn servers_without_threads(suite: &Suite) -> Checked {
    let source = suite.folder.join("serialized.c");
    let library = suite.folder.join("serialized.so");
    fs::write(&source, SERIALIZED).map_err(at(&source))?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    if !compiler.status().is_ok_and(|status| status.success()) {
        return Err(Stop::Skipped("no C compiler named cc".to_owned()));
    }
    let preloaded = format!("LD_PRELOAD={}", library.display());
    let start = |run: &Run<'_>| {
        let command = suite.shell(run.ranks, run.line(&preloaded))?;
        suite.finish(command, &run.name)
    };
    let flags = "--batch-norm local --sync parameter-server";
    let run = suite.run("serialized-in-workers").with(flags);
    let ended = start(&run)?;
    ended.expect_code(1)?;
    ended.expect_text(&["needs a communicator", "MPI_THREAD_MULTIPLE"])?;
    ended.expect_one_message()?;
    let is_empty = fs::read_dir(&run.folder).is_ok_and(|mut entries| entries.next().is_none());
    ended.expect(is_empty, "nothing written")?;
    let own = suite.run("serialized-own").on(3).with(flags);
    start(&own.with("--server-placement own"))?.expect_success()
}

/// Stops rank 1 most of the time, but never for as long as the timeout, until rank 0 has waited
/// longer than the timeout.
fn slow_rank_is_waited_for(suite: &Suite) -> Checked {
    // Enough steps to be late by more than the timeout on a fast CPU as well.
    let run = suite
        .run("slow")
        .with("--sync local-sgd --every 1000 --batch-norm local --timeout 2 --shapes-train 7202");
    // MPICH's launcher does not reap a rank whose sockets the loop inherited, so the loop ends when
    // the rank is a zombie.
    let slowed = format!(
        "if [ ${} = 1 ]; then (while kill -STOP $$ && grep -q '^State:.[^Z]' /proc/$$/status; do \
         sleep 0.4; kill -CONT $$; sleep 0.1; done >/dev/null 2>&1) & fi;",
        suite.rank_variable()
    );
    let ended = suite.succeed(suite.shell(2, run.line(&slowed))?, "slow")?;
    let waited_s = json::number(&run.file("summary.json")?, "communication").unwrap_or_default();
    ended.expect(
        waited_s > 2.0,
        &format!("rank 0 to wait longer than the timeout of 2 s, not {waited_s:.1} s"),
    )
}

fn lost_rank_is_named(suite: &Suite, signal: &str, named: &str, flags: &str) -> Checked {
    let name = format!("lost-{signal}{}", flags.replace(' ', ""));
    let run = suite.run(&name).epochs(200);
    let run = run.with("--timeout 4").with(flags);
    let (ended, elapsed) = run.signalled(|| run.has_line(), &[(signal, 1)])?;
    ended.expect(elapsed.as_secs() < 40, "an end within 40 s of the signal")?;
    ended.expect_failure()?;
    ended.expect_text(&[named])
}
