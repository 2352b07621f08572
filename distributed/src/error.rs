//! Errors between ranks.
//!
//! In: values that every rank has. Out: one error with the same text on every rank.
//! Invariant: an error follows from gathered data, so all ranks fail together. Only `Mpi`, `Nccl`,
//! `WatchdogThread` and `Aborted` may differ by rank.

use thiserror::Error;

/// A collective, or an agreement built on one, failed.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum CollectiveError {
    /// Ranks brought buffers of different lengths to one collective, or a message has another
    /// length than its receiver expects.
    #[error("{collective}: expected {expected} {}, got {got} (rank {rank})", unit(.collective))]
    LengthMismatch {
        /// Name of the collective, or `receive` or `exchange`.
        collective: &'static str,
        /// First rank that differs, or the sender.
        rank: usize,
        /// Length on root, or the receiver's.
        expected: usize,
        got: usize,
    },
    /// A message to or from a rank that is not there, or is the rank itself.
    #[error(
        "{call}: expected a rank below the world size {world_size} and not {rank} itself, got {peer} (rank {rank})"
    )]
    NoSuchPeer {
        call: &'static str,
        peer: usize,
        rank: usize,
        world_size: usize,
    },
    /// Ranks were in different collectives at once.
    #[error("rank {rank} called {got} while rank {ROOT} called {expected}. Every rank must make the same collectives in the same order.", ROOT = crate::ROOT)]
    OperationMismatch {
        rank: usize,
        expected: String,
        got: String,
    },
    /// The root of a collective is no rank of this world.
    #[error("{collective}: expected a root below the world size {world_size}, got {root}")]
    NoSuchRoot {
        collective: &'static str,
        root: usize,
        world_size: usize,
    },
    /// A rank ended the job, panicked, or left while others waited for it.
    #[error("job aborted by rank {rank}: {reason}")]
    Aborted { rank: usize, reason: String },
    /// Ranks are at different points of the run, or planned differently.
    #[error("step {}: ranks diverged: {what} is {got} on rank {rank}, expected {expected} as on rank {ROOT}", .step.saturating_add(1), ROOT = crate::ROOT)]
    RanksDiverged {
        step: u64,
        rank: usize,
        what: &'static str,
        expected: String,
        got: String,
    },
    /// A loss or gradient is NaN or infinite.
    #[error("step {}: non-finite loss or gradient on {} ({} is {value} there). Lower the learning rate, or check the data.", .step.saturating_add(1), list(.ranks), found(.parameter.as_deref()))]
    NonFinite {
        /// Step that was not taken, from 0.
        step: u64,
        /// Ranks with a non-finite value, ascending, at least one.
        ranks: Vec<usize>,
        /// Parameter of the gradient on the first of `ranks`; `None` for the loss.
        parameter: Option<String>,
        /// The non-finite value; for a gradient the largest magnitude.
        value: f32,
    },
    /// The system gave no thread for communication.
    #[error(
        "communication thread: {text}. Raise the limit of processes (ulimit -u, pids.max of the cgroup), or train with --overlap off."
    )]
    Thread { text: String },
    /// Ranks built different modules or buckets.
    #[error("{what} differs: expected {expected} as on rank {ROOT}, got {got} (rank {rank}). Build the same model with the same options on every rank.", ROOT = crate::ROOT)]
    PlanMismatch {
        what: &'static str,
        rank: usize,
        expected: String,
        got: String,
    },
    /// Two modules share a parameter.
    #[error(
        "{first} and {second} are one parameter, expected one for each. Let both places use one module, or give each its own parameter."
    )]
    SharedParameter { first: String, second: String },
    /// The ranks' parts of a global batch are not the whole of it.
    #[error(
        "share: the shares of all ranks add up to {total:.4}, expected 1. Give each rank its samples divided by those of all ranks, with the \
         mean loss over its samples"
    )]
    Shares { total: f64 },
    /// A parameter is trained that the reducer does not know.
    #[error(
        "{path} requires a gradient, and was frozen when the gradient reducer was made. Make the reducer after parameters are unfrozen"
    )]
    Unfrozen { path: String },
    /// Replicas no longer hold the same parameters.
    #[error("epoch {}: parameters drifted apart: fingerprint is {got} on {}, expected {expected} as on rank {ROOT}", .epoch.saturating_add(1), list(.ranks), ROOT = crate::ROOT)]
    FingerprintMismatch {
        /// Epoch that ended with different parameters, from 0.
        epoch: u64,
        /// Ranks that differ from root, ascending.
        ranks: Vec<usize>,
        expected: String,
        /// The fingerprint of the first of `ranks`.
        got: String,
    },
    /// The launcher started another number of tasks than the communicator has ranks.
    #[error(
        "{launcher}: expected a world of {num_tasks} ({variable}={num_tasks}), got a world of {world_size}. {remedy}. \
         For one process: unset {}", of_one_process(.variable)
    )]
    WorldSizeMismatch {
        launcher: &'static str,
        /// Variable that holds the number of tasks.
        variable: &'static str,
        num_tasks: usize,
        world_size: usize,
        remedy: &'static str,
    },
    /// A launcher's variable holds no number.
    #[error(
        "environment variable {variable}: expected a number, got \"{value}\". If no launcher set it: unset {variable}"
    )]
    LauncherVariable {
        variable: &'static str,
        value: String,
    },
    /// MPI and the launcher give this process different places.
    #[error("{launcher}: expected {what} {expected}, got {got} on node {node}. {remedy}")]
    PlaceMismatch {
        launcher: &'static str,
        what: &'static str,
        expected: usize,
        got: usize,
        node: String,
        remedy: &'static str,
    },
    /// MPI can be initialized once in a process.
    #[error(
        "MPI was initialized before in this process. Keep one communicator until the end of main."
    )]
    MpiInitializedBefore,
    /// MPI gave a thread level under which a second thread may not call it.
    #[error(
        "MPI thread level: expected at least {expected}, got {got}. Use an MPI library built with thread support."
    )]
    ThreadLevel { expected: &'static str, got: String },
    /// The watchdog needs a thread and a duplicate, and two threads may not use the communicator at
    /// once.
    #[error(
        "the watchdog needs a communicator that two threads may use at once, which {library} does not offer here. Without it a rank that stops keeps the others waiting."
    )]
    WatchdogNeedsThreads { library: String },
    /// A parameter server on a worker's rank needs a thread, and two threads may not use the
    /// communicator at once.
    #[error(
        "a parameter server on the rank of a worker needs a communicator that two threads may use at once (MPI_THREAD_MULTIPLE), which {library} does not offer here. Give the servers dedicated ranks (trainer: --server-placement own)."
    )]
    ServerNeedsThreads { library: String },
    /// The watchdog's thread did not start.
    #[error(
        "the watchdog's thread did not start on rank {rank}: {text}. Raise the limit of processes (ulimit -u, pids.max of the cgroup)."
    )]
    WatchdogThread { rank: usize, text: String },
    /// An MPI call returned an error code.
    #[error("{call} failed on rank {rank}: {text} (code {code})")]
    Mpi {
        call: &'static str,
        rank: usize,
        code: i32,
        text: String,
    },
    /// Gradients cannot go through NCCL here; found before any rank entered it.
    #[error("NCCL cannot be used on {}: {problem}. {remedy}, or remove --reduction nccl to stage gradients through host memory.", list(.ranks))]
    NcclUnavailable {
        /// Ranks with a problem, ascending, at least one.
        ranks: Vec<usize>,
        /// The expected and found state of the first of `ranks`.
        problem: String,
        remedy: String,
    },
    /// A call of NCCL, or of the CUDA driver on its way, failed.
    #[error("{call} failed on rank {rank}: {text}. NCCL_DEBUG=INFO makes NCCL print more.")]
    Nccl {
        call: &'static str,
        rank: usize,
        /// The library's name for the error.
        text: String,
    },
}

/// Returns the unit of a length, and the source of the expected one.
fn unit(collective: &str) -> String {
    match collective {
        "receive" | "exchange" => "bytes in the message".to_owned(),
        _ => format!("elements as on rank {}", crate::ROOT),
    }
}

/// Names the non-finite value.
fn found(parameter: Option<&str>) -> String {
    parameter.map_or_else(
        || "loss".to_owned(),
        |name| format!("the largest gradient, in {name},"),
    )
}

/// Returns the variables to unset for a world of one process.
fn of_one_process(variable: &str) -> &str {
    // Without the step's variable the allocation's would count.
    if variable == "SLURM_STEP_NUM_TASKS" {
        "SLURM_STEP_NUM_TASKS SLURM_NTASKS"
    } else {
        variable
    }
}

/// Returns `rank 2` or `ranks 1, 3`.
pub(crate) fn list(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_ranks_values_and_a_remedy() {
        let error = CollectiveError::NonFinite {
            step: 7,
            ranks: vec![1, 3],
            parameter: Some("conv1.weight".to_owned()),
            value: f32::NAN,
        };
        assert_eq!(
            error.to_string(),
            "step 8: non-finite loss or gradient on ranks 1, 3 (the largest gradient, in conv1.weight, is NaN there). \
             Lower the learning rate, or check the data."
        );
        let error = CollectiveError::LengthMismatch {
            collective: "barrier",
            rank: 2,
            expected: 4,
            got: 5,
        };
        assert_eq!(
            error.to_string(),
            "barrier: expected 4 elements as on rank 0, got 5 (rank 2)"
        );
        let error = CollectiveError::LengthMismatch {
            collective: "receive",
            rank: 2,
            expected: 4,
            got: 5,
        };
        assert_eq!(
            error.to_string(),
            "receive: expected 4 bytes in the message, got 5 (rank 2)"
        );
    }
}
