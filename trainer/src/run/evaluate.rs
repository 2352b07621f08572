//! Evaluation: exact counts over a whole split, which the ranks share without padding.
//!
//! In: a model, a split. Out: global sums, equal on all ranks. Invariant: every sample counts once
//! on any number of ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use datasets::{
    DatasetError, DeviceBatch, ImageBatch, ImageDataset, Loader, LoaderConfig, Normalization,
    ShardConfig, ShardPlan,
};
use distributed::replica::average_norm_statistics;
use distributed::{Communicator, ROOT};
use records::EvaluationByClass;

use crate::config::InputKind;
use crate::measure::gather::{to_root, total_scores_with};
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::model::input::{Input, Loaded};
use crate::model::loss::Loss;
use crate::model::metric::Metric;
use crate::model::{ImageClassifier, UnreadScore, answer, expect_logits};
use crate::step::readback::Readback;
use crate::world::stop::StopFlag;

/// Settings of an evaluation.
#[derive(Clone, Debug)]
pub struct EvaluateConfig {
    /// Number of samples of a forward pass on one rank.
    pub micro_batch_size: usize,
    /// Number of threads that load ahead; 0 loads in the calling thread.
    pub loader_threads: usize,
    pub input: InputKind,
    pub loss: Arc<dyn Loss>,
    pub metrics: Vec<Arc<dyn Metric>>,
    /// Prints the progress of a long evaluation.
    pub reporter: Reporter,
}

/// Result of an evaluation, equal on all ranks but for `own_answers`.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Sums over the whole split; `None` if a rank interrupted it.
    pub sums: Option<ScoreSums>,
    /// Custom metrics by name; empty if a rank interrupted the evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// Number of this rank's samples of each (label, answer).
    pub own_answers: BTreeMap<(u32, u32), u64>,
    /// True if a stop was requested on any rank.
    pub stop: bool,
}

impl Evaluation {
    /// Returns the means over the split; `None` if a rank interrupted the evaluation.
    pub fn scores(&self) -> Option<records::Evaluation> {
        self.sums
            .and_then(|sums| sums.evaluation(self.metrics.clone()))
    }

    /// Returns the record of this evaluation of `(split, epoch)`; `names` are the classes of the
    /// model. It counts the answers of all ranks on root, and only this rank's answers elsewhere.
    /// `None` if a rank interrupted the evaluation. Collective: all ranks.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn by_class(
        &self,
        (split, epoch): (&str, Option<u64>),
        dataset: &dyn ImageDataset,
        names: &[String],
        communicator: &dyn Communicator,
    ) -> Result<Option<EvaluationByClass>> {
        let Some(scores) = self.scores() else {
            return Ok(None);
        };
        let own: Vec<_> = self.own_answers.iter().collect();
        let mut answers = self.own_answers.clone();
        to_root(communicator, serde_json::to_vec(&own)?, |rank, bytes| {
            if rank != ROOT {
                for (place, count) in serde_json::from_slice::<Vec<((u32, u32), u64)>>(&bytes)? {
                    *answers.entry(place).or_default() += count;
                }
            }
            Ok(())
        })?;
        let whole = EvaluationByClass {
            split: split.to_owned(),
            epoch,
            dataset: dataset.name().to_owned(),
            dataset_checksum: dataset.checksum(),
            scores,
            ..Default::default()
        };
        Ok(Some(whole.with_counts(names, &answers)))
    }
}

/// The error for an image that a rank could not read; the same on all ranks.
#[derive(Clone, Debug, thiserror::Error)]
#[error("evaluation on rank {rank}: {reason}")]
pub struct UnreadImage {
    rank: usize,
    reason: String,
}

/// Evaluates `model` on all of `dataset`. If `stop` is raised on a rank, the evaluation is
/// interrupted.
/// Collective: all ranks.
///
/// Uses the mean of the ranks' norm statistics; the model in training keeps its own.
///
/// # Errors
/// [`UnreadImage`] on all ranks if one cannot read an image; if a collective fails.
pub fn evaluate<M: ImageClassifier>(
    model: &M,
    dataset: &Arc<dyn ImageDataset>,
    normalization: &Normalization,
    config: &EvaluateConfig,
    communicator: &dyn Communicator,
    device: &Device,
    stop: &StopFlag,
) -> Result<Evaluation> {
    let model = average_norm_statistics(model.valid(), communicator)?;
    let batches = own_batches((dataset, normalization), config, communicator, device)?;
    let mut sums = Sums::new(&config.metrics);
    let metrics = config.metrics.clone();
    let mut readback = Readback::start(move |score: UnreadScore| Sums::read(score, &metrics));
    let mut is_interrupted = false;
    let mut unread = None;
    for loaded in batches {
        is_interrupted = stop.is_raised();
        if is_interrupted {
            break;
        }
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                unread = Some(error);
                break;
            }
        };
        for batch in loaded
            .micro_batches
            .into_iter()
            .filter(|batch| !batch.labels.is_empty())
        {
            let known = batch.labels.clone();
            let ImageBatch { images, targets } = batch.into_images();
            let logits = expect_logits(model.forward(images), &known)?;
            let loss_sum = config.loss.test_sum(logits.clone(), targets.labels);
            // Read while the device computes the next batch.
            readback.send(UnreadScore::new(logits, loss_sum, known));
            if readback.num_unanswered() > 1
                && let Some(scored) = readback.receive()
            {
                sums.add(scored?);
            }
        }
    }
    while let Some(scored) = readback.receive() {
        sums.add(scored?);
    }
    let reason = unread.map_or_else(String::new, |error: DatasetError| error.to_string());
    let reasons = communicator.all_gather(reason.as_bytes())?;
    if let Some(rank) = reasons.iter().position(|reason| !reason.is_empty()) {
        let reason = String::from_utf8_lossy(&reasons[rank]).into_owned();
        return Err(UnreadImage { rank, reason }.into());
    }
    let mut num_ranks = [u64::from(stop.is_raised()), u64::from(is_interrupted)];
    communicator.all_reduce_sum_u64(&mut num_ranks)?;
    let [stop, is_interrupted] = num_ranks.map(|number| number > 0);
    let scores = total_scores_with(communicator, sums.scores, &mut sums.of_metrics)?;
    Ok(Evaluation {
        sums: (!is_interrupted).then_some(scores),
        own_answers: sums.answers,
        metrics: if is_interrupted {
            BTreeMap::new()
        } else {
            figures(&config.metrics, &sums.of_metrics)
        },
        stop,
    })
}

/// Returns the batches of this rank's samples in order, and prints the progress.
fn own_batches(
    (dataset, normalization): (&Arc<dyn ImageDataset>, &Normalization),
    config: &EvaluateConfig,
    communicator: &dyn Communicator,
    device: &Device,
) -> Result<impl Iterator<Item = Loaded<DeviceBatch>> + use<>, DatasetError> {
    let world_size = communicator.world_size();
    // A batch is not larger than the split.
    let global_batch_size = config.micro_batch_size.min(dataset.len().max(1)) * world_size;
    let plan = ShardPlan::new(ShardConfig {
        shard_index: communicator.rank(),
        num_shards: world_size,
        ..ShardConfig::new(dataset.len(), global_batch_size)
    })?;
    let how = LoaderConfig {
        raw: config.input == InputKind::Device,
        ..LoaderConfig::new(config.micro_batch_size, normalization.clone())
            .with_threads(config.loader_threads)
    };
    let num_steps = plan.num_steps();
    let loader = Loader::start(Arc::clone(dataset), plan, how);
    Ok(config.reporter.paced(
        "evaluation",
        ("batch", num_steps),
        Input::start(loader, config.input, device),
    ))
}

/// Sums over samples.
struct Sums {
    scores: ScoreSums,
    /// Sums of the custom metrics, one after the other.
    of_metrics: Vec<f64>,
    /// Number of samples of each (label, answer).
    answers: BTreeMap<(u32, u32), u64>,
}

impl Sums {
    fn new(metrics: &[Arc<dyn Metric>]) -> Self {
        let len = metrics.iter().map(|metric| metric.num_sums()).sum();
        Self {
            scores: ScoreSums::default(),
            of_metrics: vec![0.0; len],
            answers: BTreeMap::new(),
        }
    }

    /// Returns the sums of one batch.
    fn read(score: UnreadScore, metrics: &[Arc<dyn Metric>]) -> Result<Self> {
        let mut sums = Self::new(metrics);
        sums.scores = score.read_with(|row, label| {
            let mut rest = &mut *sums.of_metrics;
            for metric in metrics {
                let (own, others) = rest.split_at_mut(metric.num_sums());
                metric.add(row, label, own);
                rest = others;
            }
            *sums.answers.entry((label, answer(row, label))).or_default() += 1;
        })?;
        Ok(sums)
    }

    fn add(&mut self, batch: Self) {
        self.scores += batch.scores;
        for (sum, of_batch) in self.of_metrics.iter_mut().zip(batch.of_metrics) {
            *sum += of_batch;
        }
        for (place, count) in batch.answers {
            *self.answers.entry(place).or_default() += count;
        }
    }
}

fn figures(metrics: &[Arc<dyn Metric>], mut sums: &[f64]) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    for metric in metrics {
        let (own, rest) = sums.split_at(metric.num_sums());
        figures.insert(metric.name(), metric.value(own));
        sums = rest;
    }
    figures
}
