//! What was started, by whom.

use records::counted;

use super::{named, on_all, unlike_root};
use crate::tools::doctor::diagnosis::Row;
use crate::tools::doctor::facts::RankFacts;

/// Digits of a hash that people compare.
const DIGITS: usize = 12;

/// The same program everywhere.
pub(super) fn program(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "program";
    const REMEDY: &str =
        "install one build on every node, on a shared file system or by copying the file";
    let words = |rank: &RankFacts| {
        let program = &rank.program;
        let commit: String = program.commit.chars().take(DIGITS).collect();
        let hash = program
            .executable
            .as_ref()
            .map_or("unreadable", |hash| &hash[..DIGITS.min(hash.len())]);
        format!("{} (commit {commit}), sha256 {hash}", program.version)
    };
    let differing = unlike_root(ranks, |rank| {
        let program = &rank.program;
        (
            &program.version,
            &program.commit,
            program.executable.as_ref().ok(),
        )
    });
    let Some(root) = ranks.first() else {
        return Row::ok(NAME, "none");
    };
    if let Some(first) = differing.first() {
        let who = named(differing.iter().copied());
        return Row::fail(
            NAME,
            format!("{who}: {}; root: {}", words(first), words(root)),
            REMEDY,
        );
    }
    match &root.program.executable {
        Ok(_) => Row::ok(NAME, format!("{}{}", words(root), on_all(ranks))),
        Err(error) => Row::warn(
            NAME,
            format!("{}: {error}", words(root)),
            "compare the program's file on the nodes by hand; /proc tells nothing here",
        ),
    }
}

/// One MPI that lets a thread communicate while another computes.
pub(super) fn library(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "MPI";
    let Some(root) = ranks.first() else {
        return Row::ok(NAME, "none");
    };
    let differing = unlike_root(ranks, |rank| &rank.program.library);
    if let Some(first) = differing.first() {
        let who = named(differing.iter().copied());
        return Row::fail(
            NAME,
            format!(
                "{who}: {}; root: {}",
                first.program.library, root.program.library
            ),
            "link and run with one MPI on all nodes: load the same module, or set the same LD_LIBRARY_PATH",
        );
    }
    let tasks = root.place.launcher.as_ref().map_or(1, |(_, tasks)| *tasks);
    if !root.program.has_mpi {
        return match tasks {
            0 | 1 => Row::ok(NAME, "not built in; one rank needs none"),
            _ => Row::fail(
                NAME,
                format!("not built in, and the launcher started {tasks} tasks"),
                "rebuild with the default feature mpi, or start one task",
            ),
        };
    }
    let without: Vec<&RankFacts> = ranks
        .iter()
        .filter(|rank| !rank.program.supports_threads)
        .collect();
    if ranks.len() > 1 && !without.is_empty() {
        return Row::warn(
            NAME,
            format!(
                "{}, without MPI_THREAD_MULTIPLE on {}: gradients wait for the backward pass, and no watchdog runs",
                root.program.library,
                named(without)
            ),
            "use an MPI built with support for threads (MPICH: --enable-threads=multiple; Open MPI 3 and later have it)",
        );
    }
    // What follows is the library's package and revision.
    let library = root.program.library.split(',').next().unwrap_or_default();
    match ranks.len() {
        1 => Row::ok(NAME, format!("{library}; one rank does not need it")),
        _ => Row::ok(
            NAME,
            format!("{library}, one thread may communicate while others compute"),
        ),
    }
}

/// The world that the launcher started.
pub(super) fn world(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "world";
    let complaining: Vec<&RankFacts> = ranks
        .iter()
        .filter(|rank| rank.place.complaint.is_some())
        .collect();
    if let Some(complaint) = complaining
        .first()
        .and_then(|rank| rank.place.complaint.as_ref())
    {
        let separate = ranks.len() == 1
            && complaining[0]
                .place
                .launcher
                .as_ref()
                .is_some_and(|(_, tasks)| *tasks > 1);
        let consequence = if separate {
            ": every task would train alone, and write over the others' files"
        } else {
            ""
        };
        let who = named(complaining.iter().copied());
        return Row::fail(
            NAME,
            format!("{who}: {}{consequence}", complaint.found),
            complaint.remedy.clone(),
        );
    }
    let Some(root) = ranks.first() else {
        return Row::ok(NAME, "empty");
    };
    match &root.place.launcher {
        Some((name, tasks)) => Row::ok(
            NAME,
            format!(
                "{} of {name}, as many ranks, each in the place it was given",
                counted(*tasks, "task")
            ),
        ),
        None => Row::ok(
            NAME,
            format!("{}, no launcher", counted(ranks.len(), "rank")),
        ),
    }
}
