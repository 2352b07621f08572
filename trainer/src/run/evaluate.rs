//! Evaluation: exact counts over a whole split, which the ranks share without padding.
//!
//! In: a model, a split. Out: global sums, equal on all ranks. Invariant: every sample counts once
//! on any number of ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use datasets::{DatasetError, Loader, LoaderConfig, Samples, ShardConfig, ShardPlan};
use distributed::replica::average_norm_statistics;
use distributed::{Communicator, ROOT};
use layers::PassContext;
use layers::backend::Computation;
use records::EvaluationByClass;

use crate::config::InputKind;
use crate::measure::gather::{to_root, total_scores_with};
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::model::input::{Input, Loaded};
use crate::step::readback::Readback;
use crate::task::{BatchOf, PassSize, Scores, Task, UnreadPass};
use crate::world::stop::StopFlag;

/// Settings of an evaluation.
#[derive(Clone, Debug)]
pub struct EvaluateConfig {
    /// Number of samples of a forward pass on one rank.
    pub micro_batch_size: usize,
    /// Number of threads that load ahead; 0 loads in the calling thread.
    pub loader_threads: usize,
    pub input: InputKind,
    /// Computation of layers whose model does not choose it.
    pub computation: Computation,
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
        let sums = self.sums.as_ref();
        sums.and_then(|sums| sums.evaluation(self.metrics.clone()))
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
        dataset: &impl Samples,
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
pub fn evaluate<T: Task>(
    task: &Arc<T>,
    model: &T::Model,
    samples: &Arc<T::Samples>,
    config: &EvaluateConfig,
    communicator: &dyn Communicator,
    device: &Device,
    stop: &StopFlag,
) -> Result<Evaluation> {
    let model = average_norm_statistics(model.valid(), communicator)?;
    let batches = own_batches::<T>(samples, config, communicator, device)?;
    let empty = || Scores {
        answers: Some(BTreeMap::new()),
        ..Scores::default()
    };
    let mut scores = empty();
    let reader = Arc::clone(task);
    let mut readback = Readback::start(move |pass: UnreadPass| {
        let mut scores = empty();
        pass.add_to(&*reader, &mut scores).map(|()| scores)
    });
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
        for micro in loaded.micro_batches {
            if micro.num_samples == 0 {
                continue;
            }
            let context = PassContext::from(config.computation);
            let outputs = context.scope(|| task.forward(&model, &micro.batch))?;
            let loss_sum = task.test_loss_sum(&outputs, &micro.batch);
            let read = task.to_read(&outputs, &micro.batch);
            // Read while the device computes the next batch.
            readback.send(UnreadPass::new(read, loss_sum, PassSize::of(&micro)));
            if readback.num_unanswered() > 1
                && let Some(scored) = readback.receive()
            {
                scores += scored?;
            }
        }
    }
    while let Some(scored) = readback.receive() {
        scores += scored?;
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
    let sums = total_scores_with(communicator, &scores.sums, &mut [])?;
    Ok(Evaluation {
        metrics: if is_interrupted {
            BTreeMap::new()
        } else {
            task.figures(&sums)
        },
        sums: (!is_interrupted).then_some(sums),
        own_answers: scores.answers.unwrap_or_default(),
        stop,
    })
}

/// Returns the batches of this rank's samples in order, and prints the progress.
fn own_batches<T: Task>(
    samples: &Arc<T::Samples>,
    config: &EvaluateConfig,
    communicator: &dyn Communicator,
    device: &Device,
) -> Result<impl Iterator<Item = Loaded<BatchOf<T>>> + use<T>, DatasetError> {
    let world_size = communicator.world_size();
    // A batch is not larger than the split.
    let global_batch_size = config.micro_batch_size.min(samples.len().max(1)) * world_size;
    let plan = ShardPlan::new(ShardConfig {
        shard_index: communicator.rank(),
        num_shards: world_size,
        ..ShardConfig::new(samples.len(), global_batch_size)
    })?;
    let how = LoaderConfig::new(config.micro_batch_size).with_threads(config.loader_threads);
    let num_steps = plan.num_steps();
    let loader = Loader::start(Arc::clone(samples), plan, how);
    Ok(config.reporter.paced(
        "evaluation",
        ("batch", num_steps),
        Input::start(loader, config.input, device),
    ))
}
