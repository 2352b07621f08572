//! Gradients in buckets of main memory, in which they leave for other ranks.
//!
//! In: scores, losses. Out: the mean gradient over all ranks' samples, or over this rank's.
//! Invariant: replicas stay equal to the bit: all ranks receive the same buckets.

use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use distributed::gradients::{
    BucketContext, BucketPlan, BucketReduction, GradientReducer, MicroStepConfig, ReducerConfig,
    StepHeader, SyncedGradients,
};
use distributed::replica::ParameterLayout;
use distributed::watchdog::Phase;
use distributed::{CollectiveError, Communicator};
use layers::backend::GradientHook;

use super::Output;
use super::bucket_hook::BucketHook;
use crate::measure::metrics::ScoreSums;
use crate::measure::timer::Timer;
use crate::step::config::{Clip, Step, StepConfig, SyncMode};
use crate::step::gradient_noise::{NoiseBatches, NoiseSums};
use crate::step::optimizer::MeanGradient;
use crate::step::sync_plan::bucket_cap_bytes;

/// The buckets of one rank, and the scores of the step under way.
#[derive(Debug)]
pub(in crate::step) struct HostBuckets {
    pub(in crate::step) reducer: GradientReducer,
    hook: Arc<BucketHook>,
    clip: Option<Clip>,
    noise_batches: Option<NoiseBatches>,
    pub(in crate::step) noise: NoiseSums,
    scores: ScoreSums,
    /// Whether this rank's own gradients were finite in a local step.
    is_finite: bool,
    /// The last step's gradient, if it was kept.
    pub(super) kept: Option<Vec<f32>>,
}

impl HostBuckets {
    /// Plans the buckets of `model`, which are reduced by what `reduction` makes of the plan and a
    /// communicator that only the reduction uses.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If the ranks' plans differ, or a collective fails.
    pub(in crate::step) fn new<M: Module>(
        config: &StepConfig,
        model: &M,
        communicator: &Arc<dyn Communicator>,
        reduction: impl FnOnce(
            (&ParameterLayout, &BucketPlan),
            Arc<dyn Communicator>,
        ) -> Result<Box<dyn BucketReduction>, CollectiveError>,
    ) -> Result<Self, CollectiveError> {
        let total_bytes = ParameterLayout::new(model).num_elements() * size_of::<f32>();
        let reducer_config = ReducerConfig {
            bucket_cap_bytes: Some(bucket_cap_bytes(&config.sync, total_bytes)),
            overlap: config.sync.overlap,
            rank_status: Arc::clone(&config.rank_status),
        };
        let communicator = Arc::clone(communicator);
        let reducer =
            GradientReducer::with_reduction(model, communicator, &reducer_config, reduction)?;
        if config.gradient_noise.is_some() {
            reducer.measure_parts();
        }
        Ok(Self {
            hook: Arc::new(BucketHook::new(reducer.collector(), config.sync.update)),
            reducer,
            clip: config.clip,
            noise_batches: config.gradient_noise,
            noise: NoiseSums::default(),
            scores: ScoreSums::default(),
            is_finite: true,
            kept: None,
        })
    }

    /// Returns the hook that puts gradients into the buckets during the backward pass.
    pub(in crate::step) fn hook(&self) -> Arc<dyn GradientHook> {
        Arc::clone(&self.hook) as _
    }

    pub(super) fn begin(&mut self, step: &Step) {
        self.scores = ScoreSums::default();
        self.is_finite = true;
        self.kept = None;
        self.reducer.begin_step(BucketContext {
            learning_rate: step.context.learning_rate,
            has_samples: step.num_own > 0,
        });
    }

    pub(super) fn end_forward(&mut self, output: Output) -> Result<()> {
        self.scores += output.score().read()?;
        Ok(())
    }

    pub(super) fn backward<M: Module>(
        &mut self,
        model: &M,
        loss: Option<Tensor<1>>,
        step: &Step,
        micro_step: MicroStepConfig,
    ) {
        // Ahead of the buckets, so that all ranks agree before they use a sum.
        if micro_step.is_last && step.mode == SyncMode::Global {
            self.reducer.post_header(self.header(step));
        }
        let Some(loss) = loss else { return };
        self.reducer.begin_micro_step(micro_step);
        let gradients = loss.backward();
        self.hook.wait();
        self.reducer.accumulate(model, gradients, 1.0);
    }

    /// Returns this rank's account of the step, after its last forward pass.
    pub(in crate::step) fn header(&self, step: &Step) -> StepHeader {
        StepHeader {
            epoch: step.context.epoch,
            step: step.context.step,
            plan_hash: self.reducer.plan().hash(),
            stop: step.context.stop,
            num_samples: step.num_own as u64,
            finite: self.scores.loss_sum.is_finite() && self.is_finite,
        }
    }

    pub(super) fn finish(
        &mut self,
        step: &Step,
        timer: &Timer,
    ) -> Result<Option<MeanGradient<'_>>> {
        let keeps = step.context.keeps_gradients;
        if !step.mode.reduces() {
            let gradients = self.reducer.finish_local();
            self.is_finite = gradients.is_finite();
            self.kept = (keeps && step.num_own > 0).then(|| gradients.to_flat());
            let can_update = self.is_finite && step.num_own > 0;
            return Ok(can_update.then_some(MeanGradient::Local(gradients)));
        }
        {
            let _waiting = timer.enter(Phase::Waiting);
            self.reducer.finish()?;
        }
        let report = self.reducer.report();
        for (bucket, times) in report.buckets.iter().enumerate() {
            timer.add_bucket(bucket, times.start, times.end);
        }
        let squared_norm_of_parts = report.squared_norm_of_parts;
        let _optimizer = timer.enter(Phase::Optimizer);
        let mut gradients = self.reducer.synced();
        if let Some(batches) = self.noise_batches
            && step.num_global == batches.large
        {
            let squared_norm = gradients.norm().powi(2);
            let num_parts = step.num_micro_steps;
            self.noise +=
                NoiseSums::of_step(squared_norm_of_parts, squared_norm, num_parts, batches);
        }
        if let Some(clip) = self.clip {
            limit(&mut gradients, clip);
        }
        self.kept = keeps.then(|| gradients.to_flat());
        Ok(Some(MeanGradient::Synced(gradients)))
    }

    /// Returns the step's scores; `None` without samples.
    pub(super) fn scores(&self) -> Option<ScoreSums> {
        (self.scores.num_samples > 0).then_some(self.scores)
    }
}

fn limit(gradients: &mut SyncedGradients<'_>, clip: Clip) {
    match clip {
        Clip::Norm(limit) => {
            let norm = gradients.norm();
            if norm > limit {
                gradients.scale((limit / norm) as f32);
            }
        }
        Clip::Value(limit) => gradients.clamp(limit as f32),
    }
}
