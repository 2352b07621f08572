//! Reduction of one bucket of gradients over all ranks.
//!
//! In: this rank's gradients of a bucket. Out: the sum over all ranks, the same bits on every rank.
//! Invariant: a bucket's reduction calls the same collectives on every rank, in the same order.

use std::fmt::Debug;
use std::ops::AddAssign;
use std::sync::Arc;

use crate::algorithms::{AllReducer, ExactReducer};
use crate::compress::{BucketCompressor, CompressionKind, TensorSpan};
use crate::gradients::BucketPlan;
use crate::replica::{ParameterEntry, ParameterLayout};
use crate::{CollectiveError, Communicator};

/// A method that sums buckets. It runs on the communication thread if there is one.
pub trait BucketReduction: Send + Debug {
    /// Replaces `values` by the sum over all ranks, or by parameters that a server has updated with
    /// the sum.
    ///
    /// `values` holds [`num_slots`](BucketReduction::num_slots) consecutive copies of the bucket.
    /// After the call it holds one.
    ///
    /// # Errors
    /// Returns an error if a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same bucket.
    fn reduce(
        &mut self,
        context: BucketContext,
        bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError>;

    /// Restores the [state](BucketReduction::state) from before the last step, which all ranks
    /// skip. May be called once after a step's buckets.
    fn roll_back(&mut self) {}

    /// Returns the state between two steps, of the same kind on every rank. Returns `None` if steps
    /// do not depend on each other.
    fn state(&self) -> Option<ReductionState> {
        None
    }

    /// Restores the state after `num_steps` steps.
    ///
    /// # Panics
    /// Panics if a length differs from that of the current state.
    fn restore(&mut self, num_steps: u64, state: &ReductionState) {
        let _ = (num_steps, state);
    }

    /// Returns the number of partial gradients that a step keeps until the reduction. The number is
    /// one unless the order of addition matters.
    fn num_slots(&self) -> usize {
        1
    }

    /// Returns true if a world of one rank must also call the reduction.
    fn runs_on_one_rank(&self) -> bool {
        false
    }

    /// Returns the communicator on which the reduction waits, if it is not the communicator that it
    /// received.
    fn waits_on(&self) -> Option<Arc<dyn Communicator>> {
        None
    }
}

/// Properties of a step for the reduction of its buckets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketContext {
    /// Learning rate for the update of a server.
    pub learning_rate: f64,
    /// True if this rank has samples in the step. Without samples the rank sends no gradient to a
    /// server.
    pub has_samples: bool,
}

impl Default for BucketContext {
    /// Returns the context of a plain sum, which ignores it.
    fn default() -> Self {
        Self {
            learning_rate: 0.0,
            has_samples: true,
        }
    }
}

/// State of a reduction between two steps, which a checkpoint contains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReductionState {
    /// Residual of this rank: the part of the gradients that it has not sent, one value per
    /// element, in module order. It differs between ranks.
    pub residual: Vec<f32>,
    /// Factors for the next PowerSGD sum, matrix by matrix in module order, the same on every rank.
    /// Empty if the next sum starts with new factors.
    pub factors: Vec<f32>,
    /// Number of columns drawn for the factors of each bucket, the same on every rank.
    pub num_drawn: Vec<u64>,
}

/// Cost and error of a sum. The values of several buckets, steps and ranks are added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes that this rank sent.
    ///
    /// For `L` elements on `N` ranks, an all-reduce counts as a ring: 8 L (N−1) / N, rounded down.
    /// An all-gather of B bytes per rank counts as B (N−1).
    ///
    /// | kind | bytes |
    /// | --- | --- |
    /// | none, warm-up | an all-reduce of L |
    /// | bf16 | 2 (L − S) + 2 S (N−1), S = about L / N elements: half of an all-reduce |
    /// | f16 | the same and an all-gather of 4 |
    /// | powersgd | all-reduces of plain elements with all P, and of all Q: R (rows + columns) |
    /// | topk | an all-gather of 8 ⌈L P / 100⌉: below an all-reduce for P below 100 / N |
    pub bytes_sent: u64,
    /// Bytes of an all-reduce of the same elements as 32-bit floats: 8 L (N−1) / N, rounded down.
    pub uncompressed_bytes: u64,
    /// Squared norm of the part of this rank's input that is missing in the result. With 16-bit
    /// kinds, the squared norm of this rank's rounding errors.
    pub error_squared: f64,
    /// Squared norm of this rank's input: its gradients plus its previous residual.
    pub input_squared: f64,
}

impl Traffic {
    /// Returns `sqrt(Σ error² / Σ input²)`, or 0 if the input is 0.
    pub fn relative_error(&self) -> f64 {
        if self.input_squared == 0.0 {
            0.0
        } else {
            (self.error_squared / self.input_squared).sqrt()
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.bytes_sent += other.bytes_sent;
        self.uncompressed_bytes += other.uncompressed_bytes;
        self.error_squared += other.error_squared;
        self.input_squared += other.input_squared;
    }
}

impl Traffic {
    /// Returns the traffic of a sum of `len` values of `element_bytes` over `world_size` ranks, by
    /// an algorithm that sends the minimum number of bytes.
    pub fn of_sum(len: usize, element_bytes: usize, world_size: usize) -> Self {
        let bytes = |element: usize| (2 * (world_size - 1) * len * element / world_size) as u64;
        Self {
            bytes_sent: bytes(element_bytes),
            uncompressed_bytes: bytes(size_of::<f32>()),
            error_squared: 0.0,
            input_squared: 0.0,
        }
    }
}

/// The plain sum.
impl BucketReduction for AllReducer {
    fn reduce(
        &mut self,
        _: BucketContext,
        _bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        self.sum(values)?;
        Ok(Traffic::of_sum(
            values.len(),
            size_of::<f32>(),
            self.communicator.world_size(),
        ))
    }
}

/// Sum of virtual shards, with the same bits for any distribution of the shards over ranks. A
/// single rank also uses it.
#[derive(Debug)]
pub struct ExactReduction {
    reducer: ExactReducer,
    world_size: usize,
    num_shards: usize,
    sums: Vec<f32>,
}

impl ExactReduction {
    /// Returns a reduction that sums `num_shards` gradients of this rank and those of other ranks.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks. The numbers of shards may differ.
    pub fn new(
        communicator: Arc<dyn Communicator>,
        num_shards: usize,
    ) -> Result<Self, CollectiveError> {
        let world_size = communicator.world_size();
        Ok(Self {
            reducer: ExactReducer::new(communicator)?,
            world_size,
            num_shards,
            sums: Vec::new(),
        })
    }
}

impl BucketReduction for ExactReduction {
    fn reduce(
        &mut self,
        _: BucketContext,
        _bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        let len = values.len() / self.num_shards;
        self.sums.resize(len, 0.0);
        let shards: Vec<&[f32]> = values.chunks_exact(len.max(1)).collect();
        self.reducer.sum_shards(&shards, &mut self.sums)?;
        values.truncate(len);
        values.copy_from_slice(&self.sums);
        Ok(Traffic::of_sum(len, size_of::<u64>(), self.world_size))
    }

    fn num_slots(&self) -> usize {
        self.num_shards
    }

    fn runs_on_one_rank(&self) -> bool {
        true
    }
}

/// Compressed sum. Each step adds the residual of the previous step.
#[derive(Debug)]
pub struct CompressedReduction {
    communicator: Arc<dyn Communicator>,
    plan: BucketPlan,
    compressors: Vec<BucketCompressor>,
}

impl CompressedReduction {
    /// Returns a reduction that compresses from step `warmup_steps` on.
    ///
    /// # Errors
    /// Returns an error if the ranks' compression settings differ.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(
        kind: CompressionKind,
        warmup_steps: u64,
        (layout, plan): (&ParameterLayout, &BucketPlan),
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self, CollectiveError> {
        let mut compressors = Vec::new();
        for (index, bucket) in plan.buckets().iter().enumerate() {
            let spans = tensor_spans(&layout.entries()[bucket.parameters.clone()]);
            let compressor =
                BucketCompressor::new(kind, spans, index as u64).with_warmup_steps(warmup_steps);
            compressor.expect_equal_plans(&*communicator)?;
            compressors.push(compressor);
        }
        Ok(Self {
            communicator,
            plan: plan.clone(),
            compressors,
        })
    }
}

/// Returns the parameters of a bucket as matrices, with a row for each index of the first axis.
pub fn tensor_spans(entries: &[ParameterEntry]) -> Vec<TensorSpan> {
    let begin = entries.first().map_or(0, |entry| entry.offset);
    let span = |entry: &ParameterEntry| {
        let rows = entry.shape.first().copied().unwrap_or(1);
        let start = entry.offset - begin;
        TensorSpan {
            range: start..start + entry.len,
            rows,
            columns: entry.len / rows.max(1),
        }
    };
    entries.iter().map(span).collect()
}

impl BucketReduction for CompressedReduction {
    fn reduce(
        &mut self,
        _: BucketContext,
        bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        self.compressors[bucket].sum(values, &*self.communicator)
    }

    fn roll_back(&mut self) {
        self.compressors
            .iter_mut()
            .for_each(BucketCompressor::roll_back);
    }

    fn state(&self) -> Option<ReductionState> {
        let mut state = ReductionState::default();
        // Buckets start with the last parameters.
        for compressor in self.compressors.iter().rev() {
            let (factors, num_drawn) = compressor.factors();
            state.residual.extend_from_slice(compressor.residual());
            state.factors.extend_from_slice(factors);
            state.num_drawn.push(num_drawn);
        }
        // Without compression there is no residual.
        (!state.residual.is_empty()).then_some(state)
    }

    fn restore(&mut self, num_steps: u64, state: &ReductionState) {
        // With another plan the buckets differ. No bucket may draw columns that another bucket has
        // drawn.
        let largest = state.num_drawn.iter().copied().max().unwrap_or(0);
        let is_same_plan = state.num_drawn.len() == self.compressors.len();
        let mut factors = state.factors.as_slice();
        for (index, (compressor, bucket)) in self
            .compressors
            .iter_mut()
            .zip(self.plan.buckets())
            .rev()
            .enumerate()
        {
            let num_drawn = if is_same_plan {
                state.num_drawn[index]
            } else {
                largest
            };
            let own = factors
                .split_off(..compressor.factors().0.len())
                .unwrap_or_default();
            let residual = state
                .residual
                .get(bucket.elements.clone())
                .unwrap_or_default();
            compressor.restore(num_steps, residual, (own, num_drawn));
        }
    }

    fn runs_on_one_rank(&self) -> bool {
        true
    }
}
