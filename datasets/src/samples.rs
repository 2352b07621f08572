//! The samples of a split and the batches made of them: the interface of all tasks.
//!
//! In: the draws of a step. Out: a batch in host memory.
//! Invariant: a sample of a batch depends on its draw only, not on shards, threads or other
//! samples.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use crate::batch::Upload;
use crate::error::DatasetError;
use crate::memory::to_hex;
use crate::random::{Purpose, Stream};
use crate::shard::{ShardConfig, ShardPlan};
use crate::split::Split;

/// The samples of one split. Several threads may read them concurrently.
pub trait Samples: Debug + Send + Sync + 'static {
    /// A batch in host memory.
    type Batch: Upload;

    /// Returns the name for logs and manifests, with the split: "words train".
    fn name(&self) -> &str;

    /// Returns the number of samples, at least 1.
    fn len(&self) -> usize;

    /// Returns true if there are no samples, which is never so.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the identity of the data, a sha256 in hex. Ranks compare it before the first step,
    /// and a run continues only on equal data.
    fn checksum(&self) -> String;

    /// Returns the batch of these draws, of which there is at least one.
    ///
    /// # Errors
    /// If a sample cannot be read.
    fn batch(&self, draws: &Draws<'_>) -> Result<Self::Batch, DatasetError>;

    /// Returns how much a sample counts in the mean loss of a step: the number of its tokens or
    /// pixels with a loss, or the weight of its class. All ranks call it for all samples of a step,
    /// so it should not read files. It is not negative. Default: 1.
    fn weight(&self, draw: Draw) -> f64 {
        let _ = draw;
        1.0
    }

    /// Returns the order of an epoch. Default: each sample once, in a random order.
    ///
    /// # Errors
    /// Those of [`ShardPlan::new`].
    fn plan(&self, config: ShardConfig) -> Result<ShardPlan, DatasetError> {
        ShardPlan::new(config)
    }

    /// Returns warnings and facts for the log, one sentence each. Empty by default.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Returns true if the next [`checksum`](Self::checksum) would read files.
    fn checksum_reads_files(&self) -> bool {
        false
    }

    /// Sets the checksum that another process has computed from the same files.
    fn adopt_checksum(&self, checksum: &str) {
        let _ = checksum;
    }
}

/// Returns the sha256 of the parts, one after the other, in hex: a [`Samples::checksum`].
pub fn checksum(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    parts.iter().for_each(|part| digest.update(part));
    to_hex(&digest.finalize())
}

/// The draws of a batch in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Draws<'a> {
    /// Seed of the run.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    num_samples: usize,
    numbers: &'a [usize],
    stop: &'a AtomicBool,
}

/// One draw of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Seed of the run.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index of the sample.
    pub index: usize,
    /// Number of the draw in the epoch: the index, plus the number of samples for each earlier draw
    /// of the sample in this epoch.
    pub number: usize,
}

impl<'a> Draws<'a> {
    pub(crate) fn new(
        (seed, epoch): (u64, u64),
        num_samples: usize,
        numbers: &'a [usize],
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            seed,
            epoch,
            num_samples,
            numbers,
            stop,
        }
    }

    /// Returns the number of draws.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns true if there are no draws.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the draws, in the order of the batch.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Draw> + use<'a> {
        let Self {
            seed,
            epoch,
            num_samples,
            ..
        } = *self;
        self.numbers.iter().map(move |&number| Draw {
            seed,
            epoch,
            index: number % num_samples,
            number,
        })
    }

    /// Returns true if the loader no longer needs the batch, so that a long [`Samples::batch`] may
    /// return early.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Draw {
    /// Returns the random numbers of this draw: a function of the seed, the epoch and the number of
    /// the draw.
    pub fn random(&self) -> Stream {
        Stream::new(self.seed, self.epoch, self.number as u64, Purpose::Task)
    }
}

/// The splits of a data set.
#[derive(Debug)]
pub struct Splits<S> {
    /// Samples for training.
    pub train: Arc<S>,
    /// Samples for the comparison of epochs and settings, if there are any.
    pub val: Option<Arc<S>>,
    /// Samples for the measurement of the result, if there are any.
    pub test: Option<Arc<S>>,
    /// Warnings about existing splits that were not opened, such as a split without labels. One
    /// sentence each.
    pub notes: Vec<String>,
}

impl<S> Splits<S> {
    /// Returns the splits of a data set without a validation split.
    pub fn of_two(train: S, test: S) -> Self {
        Self {
            train: Arc::new(train),
            val: None,
            test: Some(Arc::new(test)),
            notes: Vec::new(),
        }
    }

    /// Returns the split with this name.
    pub fn get(&self, split: Split) -> Option<&Arc<S>> {
        match split {
            Split::Train => Some(&self.train),
            Split::Val => self.val.as_ref(),
            Split::Test => self.test.as_ref(),
        }
    }

    /// Returns the split for the comparison of epochs: the validation split, or the test split
    /// without one. `None` if there is neither.
    pub fn evaluated(&self) -> Option<&Arc<S>> {
        self.val.as_ref().or(self.test.as_ref())
    }
}
