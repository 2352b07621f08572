//! Buckets summed by NVIDIA's NCCL on the ranks' GPUs.
//!
//! In: buckets in host memory, one GPU a rank. Out: the sum over all ranks, in host memory, the same bits on every rank.
//! Invariant: no rank enters NCCL before all ranks have agreed that every one of them can; its libraries are loaded at run time.
//! Source: NVIDIA, NCCL user guide, "Creating a communicator" and "Fault tolerance"; Li et al. 2020 (2006.15704) for buckets.
//!
//! NCCL has no timeout, and a rank that waits in it cannot be asked to leave: what ends such a wait is the end of the process. Every
//! wait is noted in a [`RankStatus`], so that a [`Watchdog`](crate::Watchdog) ends the job after its timeout. Errors that NCCL finds
//! beside a call (`ncclCommGetAsyncError`), as when a connection breaks, are not asked for: the sum then never ends, and the watchdog
//! ends it. Ranks that are threads of one process do not end by it.

#![allow(unsafe_code, reason = "loading libraries, page-locked memory, a handle that changes threads")]

use std::sync::Arc;

use self::link::{Failure, Link, Staging, UniqueId};
use crate::reduction::{BucketContext, BucketReduction, Traffic};
use crate::watchdog::{Call, RankStatus};
use crate::{CollectiveError, Communicator, ROOT};

mod libraries;
mod link;
mod readiness;

pub use self::libraries::library_version;
pub use self::readiness::{Readiness, verdict};

/// The plain sum by `ncclAllReduce`; each bucket is copied to the GPU and back, on a stream of its own.
///
/// Ranks are to meet once more between the last reduction and the drop, as in a barrier: the drop ends the connections to the others.
///
/// # Differs from PyTorch
/// Gradients come from host memory and go back to it, where its reducer leaves them on the GPU.
#[derive(Debug)]
pub struct NcclReduction {
    // In the order in which they are given back: memory, then the connection with its stream.
    staging: Vec<Option<Staging>>,
    link: Link,
    rank: usize,
    world_size: usize,
    rank_status: Arc<RankStatus>,
}

impl NcclReduction {
    /// Joins the ranks' GPUs; `gpu` is the index of this rank's, as CUDA counts them here.
    ///
    /// # Errors
    /// [`CollectiveError::NcclUnavailable`], the same on all ranks, when a library does not load, a GPU is not there, versions
    /// differ or two ranks have the same GPU. [`CollectiveError::Nccl`] when NCCL fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(
        communicator: &dyn Communicator,
        gpu: usize,
        rank_status: Arc<RankStatus>,
    ) -> Result<Self, CollectiveError> {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        let (own, context) = link::open(gpu);
        let gathered = communicator.all_gather(own.to_text().as_bytes())?;
        verdict(&gathered.iter().map(|text| Readiness::from_text(&String::from_utf8_lossy(text))).collect::<Vec<_>>())?;
        let context = context.expect("a rank that is ready has opened its GPU");
        let id = unique_id(communicator)?;
        let noted = rank_status.note(Call::NcclInit);
        let link = Link::new(context, (rank, world_size), id).map_err(|failure| failed(rank, failure))?;
        drop(noted);
        Ok(Self { staging: Vec::new(), link, rank, world_size, rank_status })
    }
}

impl BucketReduction for NcclReduction {
    fn reduce(&mut self, _: BucketContext, bucket: usize, values: &mut Vec<f32>) -> Result<Traffic, CollectiveError> {
        let _noted = self.rank_status.note(Call::NcclSum);
        if self.staging.len() <= bucket {
            self.staging.resize_with(bucket + 1, || None);
        }
        self.link.sum(&mut self.staging[bucket], values).map_err(|failure| failed(self.rank, failure))?;
        Ok(Traffic::of_sum(values.len(), size_of::<f32>(), self.world_size))
    }
}

fn failed(rank: usize, Failure { call, text }: Failure) -> CollectiveError {
    CollectiveError::Nccl { call, rank, text }
}

/// The name of the new group of GPUs, made by root.
fn unique_id(communicator: &dyn Communicator) -> Result<UniqueId, CollectiveError> {
    // The first byte is NCCL's result.
    let mut bytes = [0; 1 + UniqueId::BYTES];
    if communicator.rank() == ROOT {
        match UniqueId::new() {
            Ok(id) => bytes[1..].copy_from_slice(&id.to_bytes()),
            Err(code) => bytes[0] = code,
        }
    }
    communicator.broadcast(ROOT, &mut bytes)?;
    match bytes[0] {
        0 => Ok(UniqueId::from_bytes(&bytes[1..])),
        code => {
            Err(CollectiveError::Nccl { call: "ncclGetUniqueId", rank: ROOT, text: format!("ncclResult_t {code}") })
        }
    }
}
