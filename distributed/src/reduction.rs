//! How one bucket of gradients becomes its sum over all ranks.
//!
//! In: this rank's gradients of a bucket. Out: the sum over all ranks, the same bits on every rank.
//! Invariant: a bucket's reduction makes the same collectives on every rank, in the same order.

use std::fmt::Debug;
use std::sync::Arc;

use crate::{
    AllReducer, BucketCompressor, BucketPlan, CollectiveError, Communicator, CompressionKind, CompressionReport,
    ExactReducer, ParameterEntry, ParameterLayout, ReductionKind, TensorSpan,
};

/// One way to sum buckets; it runs on the communication thread where there is one.
pub trait BucketReduction: Send + Debug {
    /// Replaces `values` by the sum over all ranks, or by parameters that a server has updated with it. `values` holds as many copies of the bucket, one after the other, as
    /// [`num_slabs`](BucketReduction::num_slabs) says, and is left with one.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same bucket.
    fn reduce(&mut self, bucket: usize, values: &mut Vec<f32>) -> Result<Traffic, CollectiveError>;

    /// How many partial gradients of a step are kept apart until the reduction: one, unless their order of addition matters.
    fn num_slabs(&self) -> usize {
        1
    }

    /// Whether even a world of one must go through it.
    fn is_needed_alone(&self) -> bool {
        false
    }
}

/// What one sum cost and lost; those of several buckets, steps and ranks are added up.
pub type Traffic = CompressionReport;

impl Traffic {
    /// A sum of `len` values of `element_bytes` over `world_size` ranks, by an algorithm that sends the least possible.
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

/// The plain sum, by one of the algorithms.
#[derive(Debug)]
pub struct SumReduction {
    reducer: AllReducer,
    world_size: usize,
}

impl SumReduction {
    /// Sums with `kind`.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(kind: ReductionKind, communicator: Arc<dyn Communicator>) -> Result<Self, CollectiveError> {
        let world_size = communicator.world_size();
        Ok(Self { reducer: AllReducer::new(kind, communicator)?, world_size })
    }
}

impl BucketReduction for SumReduction {
    fn reduce(&mut self, _bucket: usize, values: &mut Vec<f32>) -> Result<Traffic, CollectiveError> {
        self.reducer.sum(values)?;
        Ok(Traffic::of_sum(values.len(), size_of::<f32>(), self.world_size))
    }
}

/// The sum of virtual shards, the same bits however they lie on the ranks; even one rank goes through it.
#[derive(Debug)]
pub struct ExactReduction {
    reducer: ExactReducer,
    world_size: usize,
    num_shards: usize,
    sums: Vec<f32>,
}

impl ExactReduction {
    /// Sums `num_shards` gradients of this rank with those of the others.
    ///
    /// # Errors
    /// When the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks; each may bring another number.
    pub fn new(communicator: Arc<dyn Communicator>, num_shards: usize) -> Result<Self, CollectiveError> {
        let world_size = communicator.world_size();
        Ok(Self { reducer: ExactReducer::new(communicator)?, world_size, num_shards, sums: Vec::new() })
    }
}

impl BucketReduction for ExactReduction {
    fn reduce(&mut self, _bucket: usize, values: &mut Vec<f32>) -> Result<Traffic, CollectiveError> {
        let len = values.len() / self.num_shards;
        self.sums.resize(len, 0.0);
        let shards: Vec<&[f32]> = values.chunks_exact(len.max(1)).collect();
        self.reducer.sum_shards(&shards, &mut self.sums)?;
        values.truncate(len);
        values.copy_from_slice(&self.sums);
        Ok(Traffic::of_sum(len, size_of::<u64>(), self.world_size))
    }

    fn num_slabs(&self) -> usize {
        self.num_shards
    }

    fn is_needed_alone(&self) -> bool {
        true
    }
}

/// The compressed sum; what a step leaves out goes into the next one, unless its sum is not finite.
#[derive(Debug)]
pub struct CompressedReduction {
    communicator: Arc<dyn Communicator>,
    /// One a bucket.
    compressors: Vec<BucketCompressor>,
}

impl CompressedReduction {
    /// Compresses from step `warmup_steps` on.
    ///
    /// # Errors
    /// [`CollectiveError::PlanMismatch`] when ranks compress in different ways.
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
            let compressor = BucketCompressor::new(kind, spans, index as u64).with_warmup_steps(warmup_steps);
            compressor.expect_equal_plans(&*communicator)?;
            compressors.push(compressor);
        }
        Ok(Self { communicator, compressors })
    }
}

/// The parameters of a bucket, seen as matrices: a row for each index of the first axis.
pub fn tensor_spans(entries: &[ParameterEntry]) -> Vec<TensorSpan> {
    let begin = entries.first().map_or(0, |entry| entry.offset);
    let span = |entry: &ParameterEntry| {
        let rows = entry.shape.first().copied().unwrap_or(1);
        let start = entry.offset - begin;
        TensorSpan { range: start..start + entry.len, rows, columns: entry.len / rows.max(1) }
    };
    entries.iter().map(span).collect()
}

impl BucketReduction for CompressedReduction {
    fn reduce(&mut self, bucket: usize, values: &mut Vec<f32>) -> Result<Traffic, CollectiveError> {
        let compressor = &mut self.compressors[bucket];
        let traffic = compressor.sum(values, &*self.communicator)?;
        // The same bits on every rank, so all forget together; the step that this sum is of is not made.
        if values.iter().any(|value| !value.is_finite()) {
            compressor.reset();
        }
        Ok(traffic)
    }

    fn is_needed_alone(&self) -> bool {
        true
    }
}
