//! Evaluation: exact counts over a whole split, shared out over the ranks without padding.
//!
//! In: a model, a split. Out: global sums, equal on all ranks. Invariant: every sample counts once, whatever the number of ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use datasets::{
    DatasetError, DeviceBatch, ImageBatch, ImageDataset, Loader, LoaderConfig, Normalization,
    ShardConfig, ShardPlan,
};
use distributed::{Communicator, ROOT, replica::average_norm_statistics};
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

/// How a split is read for evaluation.
#[derive(Clone, Debug)]
pub struct EvaluateConfig {
    /// Samples of one forward pass on one rank.
    pub micro_batch_size: usize,
    /// Threads that load ahead; 0 loads in the calling thread.
    pub loader_threads: usize,
    /// Who makes the images.
    pub input: InputKind,
    /// What is reported of its answers, beside how many are right.
    pub loss: Arc<dyn Loss>,
    /// And beside the loss.
    pub metrics: Vec<Arc<dyn Metric>>,
    /// Prints how far a long evaluation is.
    pub reporter: Reporter,
}

/// What an evaluation came to, equal on all ranks but for their own answers.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Sums over the whole split; `None` if a rank broke off.
    pub sums: Option<ScoreSums>,
    /// The metrics by their names; empty if a rank broke off.
    pub metrics: BTreeMap<String, f64>,
    /// This rank's samples of each (label, answer).
    pub own_answers: BTreeMap<(u32, u32), u64>,
    /// Whether a stop was asked for on any rank.
    pub stop: bool,
}

impl Evaluation {
    /// The means over the split; `None` if a rank broke off.
    pub fn scores(&self) -> Option<records::Evaluation> {
        self.sums
            .and_then(|sums| sums.evaluation(self.metrics.clone()))
    }

    /// The samples of each (label, answer) over all ranks on root, over this rank on another.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When a collective fails.
    pub fn answers(&self, communicator: &dyn Communicator) -> Result<BTreeMap<(u32, u32), u64>> {
        let own: Vec<(u32, u32, u64)> = self
            .own_answers
            .iter()
            .map(|(&(label, answer), &count)| (label, answer, count))
            .collect();
        let mut all = self.own_answers.clone();
        to_root(communicator, serde_json::to_vec(&own)?, |rank, bytes| {
            if rank != ROOT {
                for (label, answer, count) in
                    serde_json::from_slice::<Vec<(u32, u32, u64)>>(&bytes)?
                {
                    *all.entry((label, answer)).or_default() += count;
                }
            }
            Ok(())
        })?;
        Ok(all)
    }
}

/// What is written of an evaluation of `(split, epoch)`; `names` are those of the model's classes.
pub fn by_class(
    (split, epoch): (&str, Option<u64>),
    dataset: &dyn ImageDataset,
    scores: records::Evaluation,
    names: &[String],
    answers: &BTreeMap<(u32, u32), u64>,
) -> EvaluationByClass {
    let (dataset, dataset_checksum) = (dataset.name().to_owned(), dataset.checksum());
    let whole = EvaluationByClass {
        split: split.to_owned(),
        epoch,
        dataset,
        dataset_checksum,
        scores,
        ..Default::default()
    };
    whole.with_counts(names, answers)
}

/// An image that a rank could not read: all ranks have agreed to end their evaluation with it, and with the same words.
#[derive(Clone, Debug, thiserror::Error)]
#[error("evaluation on rank {rank}: {reason}")]
pub struct UnreadImage {
    rank: usize,
    reason: String,
}

/// The loss and the right answers of `model` over all of `dataset`, summed over all ranks. A rank whose `stop` is raised breaks off.
/// Collective: all ranks.
///
/// Norm statistics are averaged over the ranks for this; the model in training keeps its own.
///
/// # Errors
/// When an image cannot be read, an [`UnreadImage`] on all ranks, or a collective fails.
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
    let (mut broken_off, mut unread) = (false, None);
    for loaded in batches {
        broken_off = stop.is_raised();
        if broken_off {
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
            // Read while the device computes the next ones.
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
    agree_on(unread, communicator)?;
    let mut wishes = [u64::from(stop.is_raised()), u64::from(broken_off)];
    communicator.all_reduce_sum_u64(&mut wishes)?;
    let [stop, is_broken_off] = wishes.map(|num_ranks| num_ranks > 0);
    let scores = total_scores_with(communicator, sums.scores, &mut sums.of_metrics)?;
    Ok(Evaluation {
        sums: (!is_broken_off).then_some(scores),
        own_answers: sums.answers,
        metrics: if is_broken_off {
            BTreeMap::new()
        } else {
            figures(&config.metrics, &sums.of_metrics)
        },
        stop,
    })
}

/// Ends the evaluation on all ranks where one could not read an image.
fn agree_on(unread: Option<DatasetError>, communicator: &dyn Communicator) -> Result<()> {
    let reason = unread.map_or_else(String::new, |error| error.to_string());
    let of_ranks = communicator.all_gather(reason.as_bytes())?;
    let Some(rank) = of_ranks.iter().position(|reason| !reason.is_empty()) else {
        return Ok(());
    };
    Err(UnreadImage {
        rank,
        reason: String::from_utf8_lossy(&of_ranks[rank]).into_owned(),
    }
    .into())
}

/// Returns the batches of this rank's samples, in their order; prints how far they are used up.
fn own_batches(
    (dataset, normalization): (&Arc<dyn ImageDataset>, &Normalization),
    config: &EvaluateConfig,
    communicator: &dyn Communicator,
    device: &Device,
) -> Result<impl Iterator<Item = Loaded<DeviceBatch>> + use<>, DatasetError> {
    let plan = own_share(dataset.len(), config.micro_batch_size, communicator)?;
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

/// The samples of this rank, in their order.
fn own_share(
    num_samples: usize,
    micro_batch_size: usize,
    communicator: &dyn Communicator,
) -> Result<ShardPlan, DatasetError> {
    let world_size = communicator.world_size();
    // More than there are come at once, too.
    let global_batch_size = micro_batch_size.min(num_samples.max(1)) * world_size;
    ShardPlan::new(ShardConfig {
        shard_index: communicator.rank(),
        num_shards: world_size,
        ..ShardConfig::new(num_samples, global_batch_size)
    })
}

/// What is summed over samples.
struct Sums {
    scores: ScoreSums,
    /// One metric's after the other's.
    of_metrics: Vec<f64>,
    /// Samples of each (label, answer).
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

    /// Those of one batch.
    fn read(score: UnreadScore, metrics: &[Arc<dyn Metric>]) -> Result<Self> {
        let Self {
            mut of_metrics,
            mut answers,
            ..
        } = Self::new(metrics);
        let scores = score.read_with(|row, label| {
            let mut rest = &mut *of_metrics;
            for metric in metrics {
                let (own, others) = rest.split_at_mut(metric.num_sums());
                metric.add(row, label, own);
                rest = others;
            }
            *answers.entry((label, answer(row, label))).or_default() += 1;
        })?;
        Ok(Self {
            scores,
            of_metrics,
            answers,
        })
    }

    fn add(&mut self, batch: Self) {
        self.scores += batch.scores;
        self.of_metrics
            .iter_mut()
            .zip(batch.of_metrics)
            .for_each(|(sum, of_batch)| *sum += of_batch);
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
