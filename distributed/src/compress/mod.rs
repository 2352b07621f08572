//! Gradient compression: the sum of one flat bucket over all ranks, with fewer bytes on the wire.
//!
//! In: this rank's gradients, weighted by the caller. Out: about their sum, the same bits on every
//! rank, and what it cost.
//! Invariant: what a step leaves out is kept and put into the next one (error feedback): Σ
//! residuals + result = Σ inputs, where an input is a gradient plus the residual before; NaN and
//! infinity of any rank end as non-finite values in the result of all. A sum can be taken back:
//! then what is kept is what was kept before it.
//! Source: Karimireddy et al. 2019, Error Feedback Fixes SignSGD (1901.09847); each method names
//! its own.

mod half_wire;
mod kind;
mod matrix;
mod power_sgd;
mod random;
mod top_k;

use std::ops::Range;

use half::{bf16, f16};

use self::half_wire::HalfWire;
pub use self::kind::CompressionKind;
use self::matrix::norm_squared;
use self::power_sgd::PowerSgd;
use self::top_k::TopK;
use crate::communicator::expect_equal;
use crate::{CollectiveError, Communicator, reduction::Traffic};

/// A gradient tensor within a bucket, seen as a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpan {
    /// Its elements within the bucket.
    pub range: Range<usize>,
    /// Rows of the matrix: for a weight the output channels, for a vector its length or 1.
    pub rows: usize,
    /// Columns of the matrix, neighbours in memory: for a convolution input channels times height
    /// times width.
    pub columns: usize,
}

/// Limits of the tensors that PowerSGD compresses; the others are sent uncompressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerSgdLimits {
    /// Least number of elements.
    pub min_elements: usize,
    /// Least factor by which both factors together are smaller than the matrix; it must be
    /// exceeded.
    pub min_rate: f64,
}

impl Default for PowerSgdLimits {
    fn default() -> Self {
        Self {
            min_elements: 1000,
            min_rate: 2.0,
        }
    }
}

impl PowerSgdLimits {
    /// Returns true if a tensor is a matrix that rank `rank` makes small enough.
    fn compress(&self, rank: usize, span: &TensorSpan) -> bool {
        let rows = span.rows;
        let columns = span.columns;
        let factors = rank as f64 * (rows as f64 + columns as f64);
        rows.min(columns) > 1
            && rows * columns >= self.min_elements
            && factors * self.min_rate < (rows * columns) as f64
    }
}

/// Elements that are worked on at once where a bucket is passed over: a few such blocks fit the
/// first-level cache together.
const BLOCK: usize = 2048;

/// The state of each kind of compression.
#[derive(Debug)]
enum Codec {
    None,
    Bf16(HalfWire<bf16>),
    F16(HalfWire<f16>),
    PowerSgd(PowerSgd),
    TopK(TopK),
}

/// Sums one bucket of gradients over all ranks, compressed; keeps what was left out for the next
/// step.
///
/// Top-k and the 16-bit wires work on the bucket as a whole, vectors and small tensors included. A
/// world of one rank compresses too, so that the effect on the training can be seen without a
/// second rank; it sends nothing.
#[derive(Debug)]
pub struct BucketCompressor {
    kind: CompressionKind,
    spans: Vec<TensorSpan>,
    seed: u64,
    limits: PowerSgdLimits,
    warmup_steps: u64,
    num_steps: u64,
    /// Part of the gradients that this rank has kept back, one element for each of the bucket;
    /// empty for [`CompressionKind::None`].
    residual: Vec<f32>,
    /// The same before the last sum.
    previous: Vec<f32>,
    codec: Codec,
}

impl BucketCompressor {
    /// Returns a compressor for a bucket that consists of `spans`, one after the other from element
    /// 0 on.
    ///
    /// All ranks must give equal arguments; see [`expect_equal_plans`](Self::expect_equal_plans).
    /// `seed` starts the factors of PowerSGD; the other kinds draw nothing. Buckets should have
    /// different seeds.
    ///
    /// # Panics
    /// If the spans leave a gap, overlap, or do not have rows times columns elements. If `kind` has
    /// a rank of 0, or a percentage that is not above 0 and at most 100.
    pub fn new(kind: CompressionKind, spans: Vec<TensorSpan>, seed: u64) -> Self {
        let mut length = 0;
        for TensorSpan {
            range,
            rows,
            columns,
        } in &spans
        {
            assert_eq!(
                range.start, length,
                "spans: expected one after the other from element 0 on, got {range:?}"
            );
            assert_eq!(
                range.len(),
                rows * columns,
                "spans: expected {rows} x {columns} elements, got {range:?}"
            );
            length = range.end;
        }
        let limits = PowerSgdLimits::default();
        let codec = match kind {
            CompressionKind::None => Codec::None,
            CompressionKind::Bf16 => Codec::Bf16(HalfWire::new(length)),
            CompressionKind::F16 => Codec::F16(HalfWire::new(length)),
            CompressionKind::PowerSgd { rank } => {
                Codec::PowerSgd(PowerSgd::new(rank, &spans, limits, seed))
            }
            CompressionKind::TopK { percent } => Codec::TopK(TopK::new(percent, length)),
        };
        let residual = vec![
            0.0;
            if kind == CompressionKind::None {
                0
            } else {
                length
            }
        ];
        let previous = residual.clone();
        Self {
            kind,
            spans,
            seed,
            limits,
            warmup_steps: 0,
            num_steps: 0,
            residual,
            previous,
            codec,
        }
    }

    /// Sums the first `steps` buckets uncompressed, 0 by default: gradients change fast at the
    /// start of a training.
    #[must_use]
    pub fn with_warmup_steps(mut self, steps: u64) -> Self {
        self.warmup_steps = steps;
        self
    }

    /// Sets which tensors PowerSGD compresses; the other kinds ignore it.
    #[must_use]
    pub fn with_limits(mut self, limits: PowerSgdLimits) -> Self {
        self.limits = limits;
        if let CompressionKind::PowerSgd { rank } = self.kind {
            self.codec = Codec::PowerSgd(PowerSgd::new(rank, &self.spans, limits, self.seed));
        }
        self
    }

    /// Returns the part of the gradients that this rank has kept back, one element for each of the
    /// bucket; empty for [`CompressionKind::None`].
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Returns the factors with which PowerSGD begins its next sum, matrix after matrix, and how
    /// many columns it has drawn for them; the same on every rank. Empty for the other kinds.
    pub fn factors(&self) -> (&[f32], u64) {
        match &self.codec {
            Codec::PowerSgd(power_sgd) => power_sgd.factors(),
            _ => (&[], 0),
        }
    }

    /// Makes what is kept back, and the factors, what they were before the last sum, for a step
    /// that is left out. The sum counts on for the warm-up, as the step does for the run. To be
    /// called at most once after a sum, by all ranks together.
    pub fn roll_back(&mut self) {
        std::mem::swap(&mut self.residual, &mut self.previous);
        if let Codec::PowerSgd(power_sgd) = &mut self.codec {
            power_sgd.roll_back();
        }
    }

    /// Restores the state that a compressor with the same plan had after `num_steps` sums: its
    /// [`residual`](Self::residual), and its [`factors`](Self::factors) unless they are empty.
    /// Factors and steps must be equal on all ranks.
    ///
    /// # Panics
    /// If a length differs from that of this compressor.
    pub fn restore(
        &mut self,
        num_steps: u64,
        residual: &[f32],
        (factors, num_drawn): (&[f32], u64),
    ) {
        self.num_steps = num_steps;
        self.residual.copy_from_slice(residual);
        match &mut self.codec {
            Codec::PowerSgd(power_sgd) if !factors.is_empty() => {
                power_sgd.restore(factors, num_drawn)
            }
            _ => {}
        }
    }

    /// Checks that all ranks compress alike.
    ///
    /// # Errors
    /// On all ranks, with the first rank that differs from root.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn expect_equal_plans(
        &self,
        communicator: &dyn Communicator,
    ) -> Result<(), CollectiveError> {
        let Self {
            kind,
            spans,
            seed,
            limits,
            warmup_steps,
            num_steps,
            ..
        } = self;
        let shapes: Vec<String> = spans
            .iter()
            .map(|span| format!("{}x{}", span.rows, span.columns))
            .collect();
        let plan = format!(
            "{kind} of {} (seed {seed}, at least {} elements, at least {} times smaller, \
             warm-up {warmup_steps} steps, step {num_steps})",
            shapes.join(" + "),
            limits.min_elements,
            limits.min_rate
        );
        expect_equal(communicator, "compression", &plan)
    }

    /// Replaces `values`, the elements of the bucket, by about their sum over all ranks, the same
    /// bits on every rank.
    ///
    /// # Errors
    /// If lengths differ between ranks (where the communicator detects it), or the job ends. The
    /// state is undefined then.
    ///
    /// # Panics
    /// If `values` does not have one element for each of the bucket.
    ///
    /// # Collective
    /// Must be called by all ranks, at the same step.
    pub fn sum(
        &mut self,
        values: &mut [f32],
        communicator: &dyn Communicator,
    ) -> Result<Traffic, CollectiveError> {
        let length = self.spans.last().map_or(0, |span| span.range.end);
        assert_eq!(
            values.len(),
            length,
            "compressed sum: expected one value for each of {length} elements"
        );
        self.num_steps += 1;
        let warming_up = self.num_steps <= self.warmup_steps;
        let mut input_squared = 0.0;
        // It is empty for `none`.
        for (index, values) in values.chunks_mut(BLOCK).enumerate() {
            let residual = self.residual.iter().skip(index * BLOCK);
            values
                .iter_mut()
                .zip(residual)
                .for_each(|(value, residual)| *value += residual);
            input_squared += norm_squared(values);
        }
        std::mem::swap(&mut self.residual, &mut self.previous);
        let residual = self.residual.as_mut_slice();
        let cost = match &mut self.codec {
            _ if warming_up => {
                residual.fill(0.0);
                sum_plain(values, communicator)
            }
            Codec::None => sum_plain(values, communicator),
            Codec::Bf16(wire) => wire.sum(values, residual, communicator),
            Codec::F16(wire) => wire.sum(values, residual, communicator),
            Codec::PowerSgd(power_sgd) => power_sgd.sum(values, residual, communicator),
            Codec::TopK(top_k) => top_k.sum(values, residual, communicator),
        };
        Ok(Traffic {
            uncompressed_bytes: reduce_bytes_sent(communicator.world_size(), length),
            input_squared,
            ..cost?
        })
    }
}

fn sum_plain(
    values: &mut [f32],
    communicator: &dyn Communicator,
) -> Result<Traffic, CollectiveError> {
    communicator.all_reduce_sum(values)?;
    Ok(Traffic {
        bytes_sent: reduce_bytes_sent(communicator.world_size(), values.len()),
        ..Traffic::default()
    })
}

/// Returns the bytes that a rank sends in a ring all-reduce of `length` 32-bit floats: 2 (N−1) / N
/// of them, rounded down.
fn reduce_bytes_sent(world_size: usize, length: usize) -> u64 {
    Traffic::of_sum(length, size_of::<f32>(), world_size).bytes_sent
}

/// Returns the bytes that a rank sends in an all-gather to which each rank brings `bytes`: N−1
/// times these.
fn gather_bytes_sent(world_size: usize, bytes: usize) -> u64 {
    ((world_size - 1) * bytes) as u64
}
