//! Readiness of all ranks for NCCL. The ranks decide together before any rank waits inside NCCL.
//!
//! In: the findings of every rank on its node. Out: one result.
//! Invariant: the result is a pure function of the gathered findings.

use crate::{CollectiveError, ROOT};

/// Findings of a rank about NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The rank can use NCCL.
    Ready {
        /// The library's version.
        version: String,
        /// Unique name of the GPU, as `nvidia-smi -L` prints it; empty if ranks may share it.
        gpu: String,
    },
    /// The rank lacks a requirement.
    Lacking {
        /// The expected and the found state.
        problem: String,
        /// The remedy.
        remedy: String,
    },
}

impl Readiness {
    pub(super) fn to_text(&self) -> String {
        let (word, first, second) = match self {
            Self::Ready { version, gpu } => ("ready", version, gpu),
            Self::Lacking { problem, remedy } => ("lacking", problem, remedy),
        };
        // The system's message might have several lines.
        format!(
            "{word}\n{}\n{}",
            first.replace('\n', " "),
            second.replace('\n', " ")
        )
    }

    pub(super) fn from_text(text: &str) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let is_ready = lines.next().as_deref() == Some("ready");
        let first = lines.next().unwrap_or_default();
        let second = lines.next().unwrap_or_default();
        match is_ready {
            true => Self::Ready {
                version: first,
                gpu: second,
            },
            false => Self::Lacking {
                problem: first,
                remedy: second,
            },
        }
    }
}

/// Checks that the ranks can use NCCL together. `all` has the findings in rank order.
///
/// # Errors
/// Returns [`CollectiveError::NcclUnavailable`] if a rank lacks a requirement, versions differ, or
/// two ranks have the same GPU.
pub fn verdict(all: &[Readiness]) -> Result<(), CollectiveError> {
    let refuse = |ranks: Vec<usize>, problem: String, remedy: &str| {
        Err(CollectiveError::NcclUnavailable {
            ranks,
            problem,
            remedy: remedy.to_owned(),
        })
    };
    let where_it_is = |wanted: &dyn Fn(&Readiness) -> bool| -> Vec<usize> {
        (0..all.len()).filter(|&rank| wanted(&all[rank])).collect()
    };
    let lacking = where_it_is(&|readiness| matches!(readiness, Readiness::Lacking { .. }));
    if let Some(Readiness::Lacking { problem, remedy }) = lacking.first().map(|&rank| &all[rank]) {
        return refuse(lacking, problem.clone(), remedy);
    }
    let Some(Readiness::Ready {
        version: expected, ..
    }) = all.first()
    else {
        return Ok(());
    };
    let other = where_it_is(
        &|readiness| matches!(readiness, Readiness::Ready { version, .. } if version != expected),
    );
    if let Some(Readiness::Ready { version, .. }) = other.first().map(|&rank| &all[rank]) {
        let problem = format!("expected NCCL {expected} as on rank {ROOT}, got {version}");
        return refuse(other, problem, "Load the same NCCL on every node");
    }
    for readiness in all {
        let Readiness::Ready { gpu, .. } = readiness else {
            continue;
        };
        if gpu.is_empty() {
            continue;
        }
        let sharing =
            where_it_is(&|other| matches!(other, Readiness::Ready { gpu: its, .. } if its == gpu));
        if sharing.len() > 1 {
            let problem = format!(
                "expected a GPU for every rank, got {gpu} for {} of them",
                sharing.len()
            );
            return refuse(
                sharing,
                problem,
                "Start as many ranks per node as it has GPUs, with --device cuda",
            );
        }
    }
    Ok(())
}
