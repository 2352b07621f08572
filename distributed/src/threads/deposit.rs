//! What ranks bring to a collective of threads, and what comes out.
//!
//! In: one deposit a rank. Out: their sum, concatenation, or the error that all ranks get.
//! Invariant: deposits are combined in rank order, so the bits do not depend on who comes first.

use std::sync::Arc;

use super::world::World;
use crate::CollectiveError;

/// What a rank brings to a collective; the result has the same kind.
#[derive(Clone, Debug)]
pub(super) enum Deposit {
    SumF32(Vec<f32>),
    SumF64(Vec<f64>),
    SumU64(Vec<u64>),
    MaxU64(Vec<u64>),
    Broadcast {
        root: usize,
        bytes: Vec<u8>,
    },
    Gather(Vec<Vec<u8>>),
    Barrier,
    /// A new world; that of the first rank is taken.
    Duplicate(Arc<World>),
}

impl Deposit {
    pub(super) fn collective(&self) -> &'static str {
        match self {
            Self::SumF32(_) => "all_reduce_sum",
            Self::SumF64(_) => "all_reduce_sum_f64",
            Self::SumU64(_) => "all_reduce_sum_u64",
            Self::MaxU64(_) => "all_reduce_max_u64",
            Self::Broadcast { .. } => "broadcast",
            Self::Gather(_) => "all_gather",
            Self::Barrier => "barrier",
            Self::Duplicate(_) => "duplicate",
        }
    }

    /// The collective with what must be equal on all ranks beside the length.
    fn signature(&self) -> String {
        match self {
            Self::Broadcast { root, .. } => format!("broadcast from root {root}"),
            _ => self.collective().to_owned(),
        }
    }

    /// The length that must be equal on all ranks.
    fn len(&self) -> usize {
        match self {
            Self::SumF32(values) => values.len(),
            Self::SumF64(values) => values.len(),
            Self::SumU64(values) | Self::MaxU64(values) => values.len(),
            Self::Broadcast { bytes, .. } => bytes.len(),
            Self::Gather(_) | Self::Barrier | Self::Duplicate(_) => 0,
        }
    }
}

/// The result of a collective from every rank's deposit, in rank order.
pub(super) fn combine(deposits: Vec<Deposit>) -> Result<Deposit, CollectiveError> {
    let world_size = deposits.len();
    let root_deposit = &deposits[crate::ROOT];
    let (collective, expected) = (root_deposit.collective(), root_deposit.signature());
    for (rank, deposit) in deposits.iter().enumerate() {
        if deposit.signature() != expected {
            return Err(CollectiveError::OperationMismatch {
                rank,
                expected,
                got: deposit.signature(),
            });
        }
        if deposit.len() != root_deposit.len() {
            let (expected, got) = (root_deposit.len(), deposit.len());
            return Err(CollectiveError::LengthMismatch {
                collective,
                rank,
                expected,
                got,
            });
        }
    }
    if let Deposit::Broadcast { root, .. } = *root_deposit {
        let sent = deposits.into_iter().nth(root);
        return sent.ok_or(CollectiveError::NoSuchRoot {
            collective,
            root,
            world_size,
        });
    }
    let mut deposits = deposits.into_iter();
    let first = deposits.next().expect("a world has at least one rank");
    Ok(deposits.fold(first, add))
}

/// The sum, or the concatenation, of two deposits of one kind.
fn add(mut total: Deposit, deposit: Deposit) -> Deposit {
    match (&mut total, deposit) {
        (Deposit::SumF32(total), Deposit::SumF32(values)) => {
            total
                .iter_mut()
                .zip(values)
                .for_each(|(total, value)| *total += value);
        }
        (Deposit::SumF64(total), Deposit::SumF64(values)) => {
            total
                .iter_mut()
                .zip(values)
                .for_each(|(total, value)| *total += value);
        }
        (Deposit::SumU64(total), Deposit::SumU64(values)) => {
            total
                .iter_mut()
                .zip(values)
                .for_each(|(total, value)| *total = total.wrapping_add(value));
        }
        (Deposit::MaxU64(total), Deposit::MaxU64(values)) => {
            total
                .iter_mut()
                .zip(values)
                .for_each(|(total, value)| *total = value.max(*total));
        }
        (Deposit::Gather(total), Deposit::Gather(mut bytes)) => total.append(&mut bytes),
        _ => {}
    }
    total
}
