//! Evaluation: exact counts over a whole split, shared out over the ranks without padding.
//!
//! In: a model, a split. Out: global sums, equal on all ranks. Invariant: every sample counts once, whatever the number of ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use datasets::{
    DatasetError, DeviceBatch, ImageBatch, ImageDataset, Loader, LoaderConfig, Normalization, ShardConfig, ShardPlan,
};
use distributed::{Communicator, average_norm_statistics};

use crate::config::InputKind;
use crate::measure::gather::total_scores_with;
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::model::input::{Input, Loaded};
use crate::model::loss::Loss;
use crate::model::metric::Metric;
use crate::model::{ImageClassifier, UnreadScore, expect_logits};
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

/// What an evaluation came to, equal on all ranks.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Sums over the whole split; `None` if a rank broke off.
    pub scores: Option<ScoreSums>,
    /// The metrics by their names; empty if a rank broke off.
    pub metrics: BTreeMap<String, f64>,
    /// Whether a stop was asked for on any rank.
    pub stop: bool,
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
    let mut readback = Readback::start(move |score: UnreadScore| score.read_with(&metrics));
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
        for batch in loaded.micro_batches.into_iter().filter(|batch| !batch.labels.is_empty()) {
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
        scores: (!is_broken_off).then_some(scores),
        metrics: if is_broken_off { BTreeMap::new() } else { figures(&config.metrics, &sums.of_metrics) },
        stop,
    })
}

/// Ends the evaluation on all ranks where one could not read an image.
fn agree_on(unread: Option<DatasetError>, communicator: &dyn Communicator) -> Result<()> {
    let reason = unread.map_or_else(String::new, |error| error.to_string());
    let of_ranks = communicator.all_gather(reason.as_bytes())?;
    let Some(rank) = of_ranks.iter().position(|reason| !reason.is_empty()) else { return Ok(()) };
    Err(UnreadImage { rank, reason: String::from_utf8_lossy(&of_ranks[rank]).into_owned() }.into())
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
        ..LoaderConfig::new(config.micro_batch_size, normalization.clone()).with_threads(config.loader_threads)
    };
    let num_steps = plan.num_steps();
    let loader = Loader::start(Arc::clone(dataset), plan, how);
    Ok(config.reporter.paced("evaluation", ("batch", num_steps), Input::start(loader, config.input, device)))
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
}

impl Sums {
    fn new(metrics: &[Arc<dyn Metric>]) -> Self {
        let len = metrics.iter().map(|metric| metric.num_sums()).sum();
        Self { scores: ScoreSums::default(), of_metrics: vec![0.0; len] }
    }

    fn add(&mut self, (scores, of_metrics): (ScoreSums, Vec<f64>)) {
        self.scores += scores;
        self.of_metrics.iter_mut().zip(of_metrics).for_each(|(sum, of_batch)| *sum += of_batch);
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
