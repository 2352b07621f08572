//! What one rank's training step takes without communication.
//!
//! In: measured times, the sizes of gradient buckets, and where known the parameters. Out: the same, checked, with other buckets.
//! Invariant: buckets are in the order in which they are reduced.

use distributed::{BucketPlan, ParameterLayout};

use crate::SimulationError;
use crate::normal::expected_largest;

/// Gradients that are reduced together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketProfile {
    /// Seconds after the start of the backward pass when the bucket is full.
    pub ready_s: f64,
    /// Bytes of its gradients.
    pub bytes: u64,
}

/// A parameter, and when its gradient is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterProfile {
    /// Its name.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Seconds after the start of the backward pass when its gradient is final.
    pub ready_s: f64,
}

/// The step of one rank.
///
/// # Units
/// Times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepProfile {
    /// Forward pass.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// In the order of their reduction.
    pub buckets: Vec<BucketProfile>,
    /// In module order; empty where they are not known.
    pub parameters: Vec<ParameterProfile>,
    /// The optimizer, after the last reduction.
    pub optimizer_s: f64,
    /// Everything else that is not hidden: waiting for data, copies, bookkeeping.
    pub other_s: f64,
    /// Images of one rank's step.
    pub batch_size_per_rank: usize,
    /// Standard deviation of the time that a rank takes until its gradients are there; 0 when all ranks are equally fast.
    pub straggler_spread_s: f64,
}

impl StepProfile {
    /// The step of one rank without any other.
    ///
    /// # Units
    /// Seconds.
    pub fn compute_s(&self) -> f64 {
        self.forward_s + self.backward_s + self.optimizer_s + self.other_s
    }

    /// How much later than the average the slowest of `ranks` has its gradients, for times that vary normally.
    ///
    /// # Units
    /// Seconds.
    pub fn straggler_s(&self, ranks: usize) -> f64 {
        self.straggler_spread_s * expected_largest(ranks)
    }

    /// Where the parameters lie in the flat buffer; `None` where they are not known.
    pub fn layout(&self) -> Option<ParameterLayout> {
        let shape = |parameter: &ParameterProfile| (parameter.path.clone(), parameter.shape.clone());
        (!self.parameters.is_empty()).then(|| ParameterLayout::from_shapes(self.parameters.iter().map(shape)))
    }

    /// This step with the buckets that training with this limit has: [`BucketPlan`]'s where the parameters are known, else those of
    /// [`with_bucket_bytes`](Self::with_bucket_bytes).
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn with_bucket_cap(&self, bytes: u64) -> Self {
        let Some(layout) = self.layout() else { return self.with_bucket_bytes(bytes) };
        assert!(bytes > 0, "buckets hold something");
        let plan = BucketPlan::new(&layout, usize::try_from(bytes).unwrap_or(usize::MAX));
        let buckets = plan.buckets().iter().map(|bucket| {
            let ready = self.parameters[bucket.parameters.clone()].iter().map(|parameter| parameter.ready_s);
            BucketProfile {
                ready_s: ready.fold(0.0, f64::max),
                bytes: (bucket.elements.len() * size_of::<f32>()) as u64,
            }
        });
        Self { buckets: buckets.collect(), ..self.clone() }
    }

    /// This step with buckets of `bytes`, the last one shorter; gradients come evenly between the times at which the old buckets were
    /// full.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn with_bucket_bytes(&self, bytes: u64) -> Self {
        assert!(bytes > 0, "buckets hold something");
        let total: u64 = self.buckets.iter().map(|bucket| bucket.bytes).sum();
        let bucket = |start| {
            let end = total.min(start + bytes);
            BucketProfile { ready_s: self.ready_s(end), bytes: end - start }
        };
        let buckets = (0..total.div_ceil(bytes)).map(|index| bucket(index * bytes)).collect();
        Self { buckets, ..self.clone() }
    }

    /// When the first `bytes` of gradients are there.
    fn ready_s(&self, bytes: u64) -> f64 {
        let (mut start, mut begin_s) = (0, 0.0);
        for bucket in &self.buckets {
            let ready_s = bucket.ready_s.max(begin_s);
            if bucket.bytes > 0 && bytes <= start + bucket.bytes {
                return begin_s + (ready_s - begin_s) * (bytes - start) as f64 / bucket.bytes as f64;
            }
            (start, begin_s) = (start + bucket.bytes, ready_s);
        }
        begin_s
    }

    pub(crate) fn check(&self) -> Result<(), SimulationError> {
        let times = [
            ("forward_s", self.forward_s),
            ("backward_s", self.backward_s),
            ("optimizer_s", self.optimizer_s),
            ("other_s", self.other_s),
            ("straggler_spread_s", self.straggler_spread_s),
        ];
        let ready = self.buckets.iter().map(|bucket| bucket.ready_s);
        let ready = ready.chain(self.parameters.iter().map(|parameter| parameter.ready_s));
        for (name, got) in times.into_iter().chain(ready.map(|ready_s| ("ready_s", ready_s))) {
            if !(got.is_finite() && got >= 0.0) {
                return Err(SimulationError::Profile { what: format!("{name} finite and not negative"), got });
            }
        }
        match self.compute_s() {
            got if got.is_finite() && got > 0.0 => Ok(()),
            got => Err(SimulationError::Profile { what: "a finite step longer than 0 s".to_owned(), got }),
        }
    }
}
