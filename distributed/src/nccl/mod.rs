//! Sums by NVIDIA's NCCL on the ranks' GPUs.
//!
//! In: a tensor in the GPU's memory (feature `cuda`), or a bucket in host memory; one GPU per rank.
//! Out: the sum over all ranks in the same memory, the same bits on every rank.
//! Invariant: no rank calls NCCL before all ranks have agreed that every rank can. NCCL's libraries
//! are loaded at run time.
//! Source: NVIDIA, NCCL user guide, "Creating a communicator" and "Fault tolerance"; Li et al. 2020
//! (2006.15704) for buckets.
//!
//! NCCL has no timeout, and only the end of the process ends a wait in NCCL. Every wait is noted in
//! a [`RankStatus`], so that a [`Watchdog`](crate::watchdog::Watchdog) ends the job after its
//! timeout. A waiting rank also polls for errors, such as a broken connection, and then fails. A
//! watchdog cannot end thread-ranks of one process.

#![allow(
    unsafe_code,
    reason = "loading libraries, addresses on the GPU, a handle that changes threads"
)]

use std::sync::Arc;

use self::api::{Api, UniqueId};
use self::link::{Failure, Link};
use crate::reduction::{BucketContext, BucketReduction, Traffic};
use crate::watchdog::RankStatus;
use crate::{CollectiveError, Communicator, ROOT};

mod api;
mod link;
mod readiness;
#[cfg(feature = "cuda")]
mod tensor;

pub use self::link::library_version;
pub use self::readiness::{Readiness, verdict};

/// Plain sum by `ncclAllReduce`: of tensors in the GPU's memory, or of buckets in host memory,
/// which are copied to the GPU and back.
///
/// Ranks need a barrier between the last reduction and the drop, which ends the connections to
/// other ranks.
#[derive(Debug)]
pub struct NcclReduction {
    link: Link,
    rank: usize,
    world_size: usize,
    rank_status: Arc<RankStatus>,
}

impl NcclReduction {
    /// Connects the ranks' GPUs. `gpu` is the CUDA index of this rank's GPU.
    ///
    /// # Errors
    /// Returns [`CollectiveError::NcclUnavailable`], the same on all ranks, if a library does not
    /// load, a GPU is missing, versions differ or two ranks have the same GPU. Returns another
    /// error if NCCL fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(
        communicator: &dyn Communicator,
        gpu: usize,
        rank_status: Arc<RankStatus>,
    ) -> Result<Self, CollectiveError> {
        let rank = communicator.rank();
        let world_size = communicator.world_size();
        let (own, context) = link::open(gpu);
        let gathered = communicator.all_gather(own.to_text().as_bytes())?;
        verdict(
            &gathered
                .iter()
                .map(|text| Readiness::from_text(&String::from_utf8_lossy(text)))
                .collect::<Vec<_>>(),
        )?;
        let (context, api) = context.expect("a rank that is ready has opened its GPU");
        let id = unique_id(communicator, api)?;
        let noted = rank_status.note("ncclCommInitRank");
        let link = Link::new((context, api), (rank, world_size), id)
            .map_err(|failure| failed(rank, failure))?;
        drop(noted);
        Ok(Self {
            link,
            rank,
            world_size,
            rank_status,
        })
    }

    /// Returns the result of `receive`, which returns `None` while there is none, after a short
    /// wait. Notes a wait of the GPU in a sum for the watchdog.
    ///
    /// # Errors
    /// Returns an error if the connection fails. Pending sums then end with invalid values.
    pub fn wait_for<T>(
        &self,
        mut receive: impl FnMut() -> Option<T>,
    ) -> Result<T, CollectiveError> {
        let mut noted = None;
        loop {
            if let Some(result) = receive() {
                return Ok(result);
            }
            let is_summing = self.link.is_summing();
            match is_summing.map_err(|failure| failed(self.rank, failure))? {
                true => drop(noted.get_or_insert_with(|| self.rank_status.note("ncclAllReduce"))),
                false => noted = None,
            }
        }
    }
}

impl BucketReduction for NcclReduction {
    fn reduce(
        &mut self,
        _: BucketContext,
        _: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        let _noted = self.rank_status.note("ncclAllReduce");
        self.link
            .sum(values)
            .map_err(|failure| failed(self.rank, failure))?;
        Ok(Traffic::of_sum(
            values.len(),
            size_of::<f32>(),
            self.world_size,
        ))
    }
}

fn failed(rank: usize, Failure { call, text }: Failure) -> CollectiveError {
    CollectiveError::Failed(format!(
        "{call} failed on rank {rank}: {text}. NCCL_DEBUG=INFO makes NCCL print more."
    ))
}

/// Returns the id of the new group of GPUs, which root creates.
fn unique_id(communicator: &dyn Communicator, api: &Api) -> Result<UniqueId, CollectiveError> {
    // The first byte is NCCL's result code.
    let mut bytes = [0; 1 + UniqueId::BYTES];
    if communicator.rank() == ROOT {
        match api.unique_id() {
            Ok(UniqueId(id)) => bytes[1..].copy_from_slice(&id),
            Err(result) => bytes[0] = u8::try_from(result).unwrap_or(u8::MAX),
        }
    }
    communicator.broadcast(ROOT, &mut bytes)?;
    match bytes[0] {
        0 => Ok(UniqueId(std::array::from_fn(|index| bytes[1 + index]))),
        result => Err(failed(
            ROOT,
            Failure {
                call: "ncclGetUniqueId",
                text: api.words(result.into()),
            },
        )),
    }
}
