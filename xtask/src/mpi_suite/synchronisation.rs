//! Checks of synchronisation on several processes through the program `trainer`: equal bits, and ends that name who is at fault.
//!
//! In: the program, a tiny training run. Out: checks.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{EXACT, LIMIT_S, Run, arguments, instead};
use crate::suite::{Check, check, same};
use cluster::json;
use cluster::mpirun::Mpirun;

pub(super) const CHECKS: [Check<Suite>; 8] = [
    check(
        "exact reduction gives the same parameter hash on 1, 2, 3 and 4 ranks",
        exact_on_any_number_of_ranks,
    ),
    check(
        "overlap, reductions and parameter servers on ranks of their own give the bits they promise",
        methods_agree,
    ),
    check(
        "verify-run finds a run of two ranks equal on two, and tells another seed's step and tensor with exit code 3",
        repetition_is_equal,
    ),
    check(
        "a rank with another seed, model, way to synchronise or data ends all, named in one message",
        strangers_are_named,
    ),
    check(
        "a rank that is stopped (SIGSTOP) ends all within the timeout, named in one message",
        |suite| lost_rank_is_named(suite, "STOP", "rank 1 does not answer"),
    ),
    check(
        "servers beside workers are refused in one sentence where MPI lets one thread call at a time, on ranks of their own they train",
        servers_without_threads,
    ),
    check(
        "a rank that is slower by more than the timeout is waited for while it makes steps",
        slow_rank_is_waited_for,
    ),
    check("a rank that is killed (SIGKILL) ends all, named", |suite| {
        let words = suite
            .mpirun
            .as_ref()
            .map_or("rank 1", Mpirun::words_of_a_kill);
        lost_rank_is_named(suite, "KILL", words)
    }),
];

/// Seconds that a rank of these runs may wait for another.
const TIMEOUT_S: &str = "4";

/// A run's parameter hash.
fn hash(suite: &Suite, name: &str, ranks: usize, further: &[&str]) -> Result<String, String> {
    let run = Run::new(suite, name);
    run.train(suite, ranks, 1, further)?;
    run.parameter_hash()
}

fn exact_on_any_number_of_ranks(suite: &Suite) -> Result<(), String> {
    let exact = [&EXACT[..], &["--augment", "crop-flip"]].concat();
    let expected = hash(suite, "exact-1", 1, &exact)?;
    for ranks in 2..=4 {
        let got = hash(suite, &format!("exact-{ranks}"), ranks, &exact)?;
        same(&format!("{ranks} ranks"), &expected, &got)?;
    }
    Ok(())
}

fn methods_agree(suite: &Suite) -> Result<(), String> {
    let local = ["--batch-norm", "local"];
    let with = |further: &[&'static str]| [&local[..], further].concat();
    // Two terms have one order: all sums are equal.
    let expected = hash(suite, "overlap-on", 2, &with(&[]))?;
    for (name, ranks, further) in [
        ("overlap-off", 2, with(&["--overlap", "off"])),
        ("ring", 2, with(&["--reduction", "ring"])),
        ("halving", 2, with(&["--reduction", "halving-doubling"])),
        ("library", 2, with(&["--reduction", "mpi"])),
        ("server", 2, with(&["--sync", "parameter-server"])),
        (
            "own-server",
            3,
            with(&["--sync", "parameter-server", "--server-placement", "own"]),
        ),
        (
            "stale-0",
            2,
            with(&["--sync", "async-parameter-server", "--staleness", "0"]),
        ),
    ] {
        same(name, &expected, &hash(suite, name, ranks, &further)?)?;
    }
    hash(
        suite,
        "async",
        3,
        &with(&["--sync", "async-parameter-server", "--servers", "2"]),
    )?;
    hash(
        suite,
        "local-sgd",
        3,
        &with(&["--sync", "local-sgd", "--every", "2"]),
    )?;
    Ok(())
}

fn repetition_is_equal(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "repeated");
    run.train(suite, 2, 1, &[])?;
    let words = ["verify-run".to_owned(), run.folder.display().to_string()];
    let repeated =
        |name: &str| suite.finish(suite.on_ranks(2, &suite.trainer, &words)?, name, LIMIT_S);
    let ended = repeated("repetition")?;
    ended.expect_success()?;
    ended.expect(
        ended.finished.text.contains("equal: 5 steps"),
        "five equal steps",
    )?;
    let options = run
        .file("run.toml")?
        .replace("\nseed = 0\n", "\nseed = 1\n");
    fs::write(run.folder.join("run.toml"), options).map_err(|error| error.to_string())?;
    let ended = repeated("repetition-of-another-seed")?;
    ended.expect(ended.finished.code == Some(3), "exit code 3")?;
    ended.expect(
        ended.finished.text.contains("different from step 0 on"),
        "the first step",
    )
}

fn strangers_are_named(suite: &Suite) -> Result<(), String> {
    let variable = suite.rank_variable();
    for (name, differing, named) in [
        ("seed", format!("--seed ${variable}"), "run.seed of rank 1"),
        (
            "model",
            format!("--model resnet$((8 + 6 * {variable}))"),
            "model.model of rank 1",
        ),
        (
            "sync",
            format!("--sync $(test ${variable} = 0 && echo parameter-server || echo allreduce)"),
            "sync.server-placement of rank 1 differs from root's",
        ),
        (
            "images",
            format!("--shapes-train $((202 + {variable}))"),
            "of rank 1 differs from root's: expected 202, got 203",
        ),
    ] {
        let run = Run::new(suite, &format!("stranger-{name}"));
        let differing: Vec<&str> = differing.splitn(2, ' ').collect();
        let words = instead(
            arguments(&run.folder, 1),
            &[&differing[..], &["--timeout", TIMEOUT_S]].concat(),
        );
        let ended = suite.finish(in_shell(suite, 2, "", &words)?, &run.name, 120)?;
        ended.expect(ended.finished.code != Some(0), "an exit code that is not 0")?;
        ended.expect(ended.finished.text.contains(named), named)?;
        ended.expect(
            ended.finished.text.matches("error (rank").count() == 1,
            "one message",
        )?;
    }
    Ok(())
}

/// The arguments in a shell, after what differs between the ranks.
fn in_shell(
    suite: &Suite,
    ranks: usize,
    before: &str,
    words: &[String],
) -> Result<Command, String> {
    let line = format!(
        "{before} exec {} {}",
        suite.trainer.display(),
        words.join(" ")
    );
    suite.on_ranks(ranks, Path::new("/bin/sh"), &["-c".to_owned(), line])
}

/// Asks MPI for `MPI_THREAD_SERIALIZED`, whatever the program asks for.
const SERIALIZED: &str = "int PMPI_Init_thread(int *, char ***, int, int *);\n\
    int MPI_Init_thread(int *argc, char ***argv, int wanted, int *got) {\n\
    (void)wanted; return PMPI_Init_thread(argc, argv, 2, got); }\n";

fn servers_without_threads(suite: &Suite) -> Result<(), String> {
    let (source, library) = (
        suite.folder.join("serialized.c"),
        suite.folder.join("serialized.so"),
    );
    fs::write(&source, SERIALIZED).map_err(|error| format!("{}: {error}", source.display()))?;
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("        skipped: no C compiler named cc");
        return Ok(());
    }
    let preloaded = format!("LD_PRELOAD={}", library.display());
    for (name, ranks, further, refused) in [
        (
            "serialized-beside",
            2,
            &["--sync", "parameter-server"][..],
            true,
        ),
        (
            "serialized-own",
            3,
            &["--sync", "parameter-server", "--server-placement", "own"],
            false,
        ),
    ] {
        let run = Run::new(suite, name);
        let words = instead(
            arguments(&run.folder, 1),
            &[&["--batch-norm", "local"], further].concat(),
        );
        let ended = suite.finish(in_shell(suite, ranks, &preloaded, &words)?, name, 120)?;
        let text = &ended.finished.text;
        if !refused {
            ended.expect_success()?;
            continue;
        }
        ended.expect(ended.finished.code == Some(1), "exit code 1")?;
        ended.expect(
            text.contains("a parameter server beside a worker needs a communicator"),
            "the reason",
        )?;
        ended.expect(text.matches("error (rank").count() == 1, "one message")?;
        ended.expect(!run.folder.exists(), "nothing written")?;
    }
    Ok(())
}

/// Rank 1 stands still for most of the time, but never for as long as the timeout, until rank 0 has waited for longer.
fn slow_rank_is_waited_for(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "slow");
    let apart = [
        "--sync",
        "local-sgd",
        "--every",
        "1000",
        "--batch-norm",
        "local",
        "--timeout",
        "2",
    ];
    // Enough steps for a fast processor, too, to be late by more than the timeout.
    let words = instead(
        arguments(&run.folder, 1),
        &[&apart[..], &["--shapes-train", "7202"]].concat(),
    );
    // MPICH's launcher does not bury a rank whose sockets the loop has inherited: it ends once the rank is a zombie.
    let slowed = format!(
        "if [ ${} = 1 ]; then (while kill -STOP $$ && grep -q '^State:.[^Z]' /proc/$$/status; do sleep 0.4; kill -CONT $$; sleep 0.1; done >/dev/null 2>&1) & fi;",
        suite.rank_variable()
    );
    let ended = suite.finish(in_shell(suite, 2, &slowed, &words)?, "slow", 120)?;
    ended.expect_success()?;
    let waited_s = json::number(&run.file("summary.json")?, "communication").unwrap_or_default();
    ended.expect(
        waited_s > 2.0,
        &format!("rank 0 to have waited for longer than the timeout of 2 s, not {waited_s:.1} s"),
    )
}

fn lost_rank_is_named(suite: &Suite, signal: &str, named: &str) -> Result<(), String> {
    let run = Run::new(suite, &format!("lost-{signal}"));
    let mut words = arguments(&run.folder, 200);
    words.extend(["--timeout".to_owned(), TIMEOUT_S.to_owned()]);
    let (ended, elapsed) = run.signalled(suite, 2, &words, || run.has_line(), &[(signal, 1)])?;
    ended.expect(elapsed.as_secs() < 40, "an end within 40 s of the signal")?;
    ended.expect(ended.finished.code != Some(0), "an exit code that is not 0")?;
    ended.expect(ended.finished.text.contains(named), named)
}
