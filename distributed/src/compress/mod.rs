//! Gradient compression: the sum of one flat bucket over all ranks, in fewer bytes.
//!
//! In: this rank's gradients, weighted by the caller. Out: their approximate sum, the same bits on
//! every rank, and the traffic.
//! Invariant: each step adds what earlier steps did not send (error feedback). Σ residuals + result
//! = Σ inputs, where an input is a gradient plus the previous residual. NaN or infinity on any rank
//! gives non-finite values in the result of all ranks. A sum can be rolled back, which restores the
//! previous residual.
//! Source: Karimireddy et al. 2019, Error Feedback Fixes SignSGD (1901.09847). Each method names
//! its own source.

mod half_wire;
mod kind;
mod matrix;
mod power_sgd;
mod random;
mod top_k;

use std::ops::Range;

use half::{bf16, f16};

use self::half_wire::HalfWire;
pub use self::half_wire::RoundedSum;
pub use self::kind::CompressionKind;
use self::matrix::norm_squared;
use self::power_sgd::PowerSgd;
use self::top_k::TopK;
use crate::communicator::expect_equal;
use crate::{CollectiveError, Communicator, reduction::Traffic};

/// A gradient tensor within a bucket, as a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpan {
    /// Indices of the tensor's elements in the bucket.
    pub range: Range<usize>,
    /// Rows of the matrix: the output channels of a weight. For a vector, its length or 1.
    pub rows: usize,
    /// Columns of the matrix, consecutive in memory. For a convolution, input channels times height
    /// times width.
    pub columns: usize,
}

/// Limits of the tensors that PowerSGD compresses. Other tensors are sent uncompressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerSgdLimits {
    /// Minimum number of elements.
    pub min_elements: usize,
    /// Compression ratio of both factors that a tensor must exceed.
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
    /// Returns true if rank `rank` compresses the matrix of a tensor enough.
    fn compress(&self, rank: usize, span: &TensorSpan) -> bool {
        let rows = span.rows;
        let columns = span.columns;
        let factors = rank as f64 * (rows as f64 + columns as f64);
        rows.min(columns) > 1
            && rows * columns >= self.min_elements
            && factors * self.min_rate < (rows * columns) as f64
    }
}

/// Elements per block in loops over a bucket. A few blocks fit the L1 cache.
const BLOCK: usize = 2048;

/// State of each kind of compression.
#[derive(Debug)]
enum Codec {
    None,
    Bf16(HalfWire<bf16>),
    F16(HalfWire<f16>),
    PowerSgd(PowerSgd),
    TopK(TopK),
}

/// Compressed sum of one bucket of gradients over all ranks, with the residual for the next step.
///
/// Top-k and the 16-bit kinds compress the whole bucket, including vectors and small tensors. A
/// world of one rank compresses but sends nothing. It shows the effect on the training without a
/// second rank.
#[derive(Debug)]
pub struct BucketCompressor {
    kind: CompressionKind,
    spans: Vec<TensorSpan>,
    seed: u64,
    limits: PowerSgdLimits,
    warmup_steps: u64,
    num_steps: u64,
    /// Residual: the part of the gradients that this rank has not sent, with one value per element.
    /// Empty for [`CompressionKind::None`].
    residual: Vec<f32>,
    /// Residual before the last sum.
    previous: Vec<f32>,
    codec: Codec,
}

impl BucketCompressor {
    /// Returns a compressor for a bucket that consists of consecutive `spans`, starting at element
    /// 0.
    ///
    /// All ranks must pass equal arguments, which [`expect_equal_plans`](Self::expect_equal_plans)
    /// checks. `seed` determines the first factors of PowerSGD. Other kinds draw no random numbers.
    /// Buckets should have different seeds.
    ///
    /// # Panics
    /// Panics if the spans leave a gap, overlap, or do not have rows times columns elements. Panics
    /// if `kind` has a rank of 0, or a percentage that is not above 0 and at most 100.
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

    /// Sums the first `steps` buckets uncompressed, because gradients change fast at the start of
    /// training. The default is 0.
    #[must_use]
    pub fn with_warmup_steps(mut self, steps: u64) -> Self {
        self.warmup_steps = steps;
        self
    }

    /// Sets which tensors PowerSGD compresses. Other kinds ignore the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: PowerSgdLimits) -> Self {
        self.limits = limits;
        if let CompressionKind::PowerSgd { rank } = self.kind {
            self.codec = Codec::PowerSgd(PowerSgd::new(rank, &self.spans, limits, self.seed));
        }
        self
    }

    /// Returns the residual: the part of the gradients that this rank has not sent, with one value
    /// per element. Empty for [`CompressionKind::None`].
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Returns the first factors of PowerSGD's next sum, matrix by matrix, and the number of
    /// columns drawn for them. Both are the same on every rank. Empty for other kinds.
    pub fn factors(&self) -> (&[f32], u64) {
        match &self.codec {
            Codec::PowerSgd(power_sgd) => power_sgd.factors(),
            _ => (&[], 0),
        }
    }

    /// Restores the residual and the factors from before the last sum, for a skipped step. The
    /// skipped step still counts for the warm-up. All ranks must call this together, at most once
    /// after a sum.
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
    /// Panics if a length differs from that of this compressor.
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

    /// Checks that all ranks compress in the same way.
    ///
    /// # Errors
    /// Returns an error on all ranks if a plan differs. The error names the first rank that differs
    /// from root.
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

    /// Replaces the bucket's elements `values` by their approximate sum over all ranks, the same
    /// bits on every rank.
    ///
    /// # Errors
    /// Returns an error if lengths differ between ranks (where the communicator detects a
    /// difference), or if the job ends. The state is then undefined.
    ///
    /// # Panics
    /// Panics if `values` and the bucket differ in length.
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
        // The residual is empty for `none`.
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

/// Returns the bytes that a rank sends in a ring all-reduce of `length` 32-bit floats. The number
/// is 2 (N−1) / N times the bytes of the floats, rounded down.
fn reduce_bytes_sent(world_size: usize, length: usize) -> u64 {
    Traffic::of_sum(length, size_of::<f32>(), world_size).bytes_sent
}

/// Returns the bytes that a rank sends in an all-gather of `bytes` per rank: N−1 times `bytes`.
fn gather_bytes_sent(world_size: usize, bytes: usize) -> u64 {
    ((world_size - 1) * bytes) as u64
}
