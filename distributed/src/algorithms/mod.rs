//! All-reduce algorithms of this crate, on the messages of a communicator.
//!
//! In: a buffer on every rank. Out: the sum over all ranks, the same bits on every rank.
//! Invariant: one rank sums each element in an order that depends only on ranks. The other ranks
//! receive a copy.
//! Source: Patarasuk & Yuan 2009 (ring); Thakur, Rabenseifner & Gropp 2005 (halving and doubling).

use std::sync::Arc;

use crate::communicator::ReduceBuffer;
use crate::{CollectiveError, Communicator};

pub use self::exact::ExactReducer;
pub use self::hierarchical::HierarchicalReducer;

mod exact;
mod group;
mod halving_doubling;
mod hierarchical;
mod ring;

#[cfg(feature = "mpi")]
pub(crate) use self::group::Number;
pub(crate) use self::group::add;
use self::group::{Group, Scratch};

/// Algorithm that sums gradients over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReductionKind {
    /// `all_reduce_sum` of the communicator.
    Library,
    /// Ring all-reduce of slices.
    Ring,
    /// Recursive halving, then doubling. Messages are fewer and larger than in a ring.
    HalvingDoubling,
    /// Reduction inside each node, then between the first ranks of the nodes, then inside each node
    /// again.
    Hierarchical,
    /// Sums of integers, with the same bits for any distribution of the same shards over ranks.
    Exact,
}

/// Name of an algorithm that sums gradients, as value of a flag.
#[cfg(feature = "cli")]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReductionChoice {
    /// The collective of the MPI library.
    Mpi,
    /// Around a ring of ranks.
    Ring,
    /// Recursive halving and doubling.
    HalvingDoubling,
    /// Inside each machine, then between machines.
    Hierarchical,
    /// The same bits on any number of ranks.
    Exact,
    /// NVIDIA's NCCL on the GPUs of the ranks.
    Nccl,
}

#[cfg(feature = "cli")]
impl ReductionChoice {
    /// Returns the algorithm that uses messages between ranks; `None` for NCCL.
    pub fn kind(self) -> Option<ReductionKind> {
        Some(match self {
            Self::Mpi => ReductionKind::Library,
            Self::Ring => ReductionKind::Ring,
            Self::HalvingDoubling => ReductionKind::HalvingDoubling,
            Self::Hierarchical => ReductionKind::Hierarchical,
            Self::Exact => ReductionKind::Exact,
            Self::Nccl => return None,
        })
    }
}

#[cfg(feature = "cli")]
impl std::fmt::Display for ReductionChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self).expect("no variant is skipped");
        formatter.pad(value.get_name())
    }
}

/// All-reduce of buffers by one algorithm. Second buffers are kept between calls.
#[derive(Debug)]
pub struct AllReducer {
    pub(crate) communicator: Arc<dyn Communicator>,
    kind: ReductionKind,
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    Library,
    Ring(Group, Scratch),
    HalvingDoubling(Group, Scratch),
    Hierarchical(HierarchicalReducer),
    Exact(ExactReducer),
}

impl AllReducer {
    /// Returns a reducer on `communicator`. No other thread may call `communicator` during a sum.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same kind.
    pub fn new(
        kind: ReductionKind,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self, CollectiveError> {
        let world = Group::world(&*communicator);
        let algorithm = match kind {
            ReductionKind::Library => Algorithm::Library,
            ReductionKind::Ring => Algorithm::Ring(world, Scratch::default()),
            ReductionKind::HalvingDoubling => Algorithm::HalvingDoubling(world, Scratch::default()),
            ReductionKind::Hierarchical => {
                Algorithm::Hierarchical(HierarchicalReducer::new(Arc::clone(&communicator))?)
            }
            ReductionKind::Exact => Algorithm::Exact(ExactReducer::new(Arc::clone(&communicator))?),
        };
        Ok(Self {
            communicator,
            kind,
            algorithm,
        })
    }

    /// Makes each element of a buffer stand for `magnification` elements, for simulations. Pieces
    /// of a fixed length become shorter.
    pub fn set_magnification(&mut self, magnification: f64) {
        match &mut self.algorithm {
            Algorithm::Library => {}
            Algorithm::Ring(_, scratch) | Algorithm::HalvingDoubling(_, scratch) => {
                scratch.magnification = magnification;
            }
            Algorithm::Hierarchical(reducer) => reducer.set_magnification(magnification),
            Algorithm::Exact(reducer) => reducer.set_magnification(magnification),
        }
    }

    /// Returns the algorithm.
    pub fn kind(&self) -> ReductionKind {
        self.kind
    }

    /// Replaces `values` by their sum over all ranks.
    ///
    /// Allocates no memory after the call with the longest buffer. [`ReductionKind::Exact`] uses
    /// `values` as one shard.
    ///
    /// # Errors
    /// Returns an error if lengths differ between ranks (where the communicator detects it), or the
    /// job ends.
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        match &mut self.algorithm {
            Algorithm::Library => self.communicator.all_reduce(ReduceBuffer::SumF32(values)),
            Algorithm::Ring(group, scratch) => {
                ring::sum(&*self.communicator, group, scratch, values)
            }
            Algorithm::HalvingDoubling(group, scratch) => {
                halving_doubling::sum(&*self.communicator, group, scratch, values)
            }
            Algorithm::Hierarchical(reducer) => reducer.sum(values),
            Algorithm::Exact(reducer) => reducer.sum(values),
        }
    }
}
