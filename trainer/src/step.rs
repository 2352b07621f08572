//! One training step: micro-batches to gradients, agreement of all ranks, mean gradient, update.
//!
//! In: the loaded samples of one step, the learning rate. Out: a changed model and local sums for the metrics.
//! Invariant: between a step's first and last collective no rank leaves alone: the header carries every rank's stop wish and
//! finiteness, and all ranks draw the same conclusion from it.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), for buckets; Goyal et al. 2017 (1706.02677), section 3, for the mean.

mod meeting;
mod micro;
mod on_device;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use burn::tensor::Device;
use datasets::{DeviceBatch, LoadedStep};
use distributed::{
    Carried, Communicator, GradientReducer, ParameterLayout, StepHeader, Whereabouts, agree, broadcast_module, read,
    watchdog, write,
};

use self::meeting::BucketSink;
use self::micro::MicroStep;
use self::on_device::OnDevice;
use crate::clock::{Phase, PhaseClock};
use crate::config::SyncConfig;
use crate::loss_scale::{LossScale, LossScaling};
use crate::metrics::{ScoreSums, StepTraffic};
use crate::model::ImageClassifier;
use crate::norm_reducer::NormReducer;
use crate::optimizer::{Sgd, SgdConfig};
use crate::shard_statistics::ShardStatistics;
use crate::synchronizer::{Synchronizer, Togetherness};

/// How a step is made, apart from model and data.
#[derive(Clone, Debug)]
pub struct StepConfig {
    /// The optimizer.
    pub sgd: SgdConfig,
    /// Share of the label's weight spread over all classes, in `[0, 1)`.
    pub label_smoothing: f64,
    /// Largest L2 norm of the mean gradient; a longer one is scaled down to it.
    pub clip_norm: Option<f64>,
    /// Factor on the loss; dynamic only where all ranks sum the gradients of every step.
    pub loss_scale: LossScaling,
    /// Norm statistics over all ranks instead of each rank's own.
    pub sync_batch_norm: bool,
    /// Whether a step with a loss or gradient that is not finite is left out, instead of ending in an error. Only where all ranks
    /// sum the gradients of every step.
    pub skips_non_finite: bool,
    /// How the ranks' gradients or parameters become one.
    pub sync: SyncConfig,
    /// Joins the ranks that train with those that only serve parameters, where there are such.
    pub server_link: Option<Arc<dyn Communicator>>,
    /// Where the step says what it is doing.
    pub whereabouts: Arc<Whereabouts>,
}

/// Where a step stands in its run.
#[derive(Clone, Copy, Debug)]
pub struct StepPosition {
    /// Pass over the train split, from 0.
    pub epoch: u64,
    /// Optimizer update, from 0 over the whole run.
    pub step: u64,
    /// Whether all replicas must be equal after it, whatever the method: the epoch ends, or a checkpoint is due.
    pub must_meet: bool,
}

/// How a step ended, equal on all ranks.
#[derive(Clone, Debug, Default)]
pub struct StepEnd {
    /// Whether the ranks agreed to stop after it.
    pub stop: bool,
    /// Why it was left out, if it was.
    pub skipped: Option<String>,
    /// Whether that was an overflow of the scaled gradients, for which the loss scale was halved.
    pub overflowed: bool,
}

/// A model in training on one rank.
#[derive(Debug)]
pub struct Stepper<M> {
    model: M,
    /// At rest where the device updates.
    optimizer: Sgd,
    /// Where the device updates.
    on_device: Option<OnDevice>,
    reducer: GradientReducer,
    synchronizer: Synchronizer,
    loss_scale: LossScale,
    shard_statistics: Option<ShardStatistics>,
    norm_reducer: Option<Arc<NormReducer>>,
    /// Of the norm statistics.
    state_layout: ParameterLayout,
    /// Where the model hands gradients over, if it does.
    sink: Option<Arc<BucketSink>>,
    has_met_non_finite: bool,
    traffic: StepTraffic,
    /// When the last backward pass of the present step began.
    backward_start: Instant,
    communicator: Arc<dyn Communicator>,
    device: Device,
    config: StepConfig,
}

impl<M: ImageClassifier> Stepper<M> {
    /// Takes root's parameters and norm statistics on every rank and plans the buckets.
    ///
    /// `device` is the plain device; the model trains on its autodiff form.
    ///
    /// # Errors
    /// When the ranks' models differ in structure, or the model has no synchronised norm and one is asked for.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(model: M, config: StepConfig, communicator: Arc<dyn Communicator>, device: &Device) -> Result<Self> {
        let model = broadcast_module(model, &*communicator, 0)?;
        let (synchronizer, reducer) = Synchronizer::start(
            &config.sync,
            config.sgd,
            &model,
            &communicator,
            config.server_link.clone(),
            &config.whereabouts,
        )?;
        let norm_reducer = config.sync_batch_norm.then(|| Arc::new(NormReducer::new(Arc::clone(&communicator))));
        let shard_statistics = match synchronizer.virtual_shards() {
            Some(_) => Some(ShardStatistics::new(&model, Arc::clone(&communicator))?),
            None => None,
        };
        let optimizer = Sgd::new(config.sgd, reducer.layout(), read(&model, reducer.layout()));
        let updates_on_device = config.sync.updates_on_device(communicator.world_size());
        let on_device = updates_on_device.then(|| OnDevice::new(config.sgd, reducer.layout(), &model, device));
        let device = device.clone().autodiff();
        let state_layout = ParameterLayout::state(&model);
        let mut stepper = Self {
            model,
            state_layout,
            optimizer,
            on_device,
            reducer,
            synchronizer,
            loss_scale: LossScale::new(config.loss_scale),
            shard_statistics,
            norm_reducer,
            sink: None,
            has_met_non_finite: false,
            traffic: StepTraffic::default(),
            backward_start: Instant::now(),
            communicator,
            device,
            config,
        };
        stepper.tell_servers()?;
        stepper.connect()?;
        Ok(stepper)
    }

    /// The model as it stands.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, its training over, and how many updates asynchronous servers made, by their staleness.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn finish(self) -> Result<(M, Option<Vec<u64>>)> {
        let histogram = self.synchronizer.finish(&*self.communicator)?;
        Ok((self.model, histogram))
    }

    /// The parameters, flat in module order.
    pub fn parameters(&self) -> Cow<'_, [f32]> {
        match &self.on_device {
            Some(on_device) => on_device.sgd.parameters().into(),
            None => self.optimizer.parameters().into(),
        }
    }

    /// The optimizer's velocities, flat in module order: its state to save.
    pub fn velocities(&self) -> Cow<'_, [f32]> {
        match &self.on_device {
            Some(on_device) => on_device.sgd.velocities().into(),
            None => self.optimizer.velocities().into(),
        }
    }

    /// Where the batches of its steps belong: the device with its autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The bucket plan and parameter layout in use.
    pub fn reducer(&self) -> &GradientReducer {
        &self.reducer
    }

    /// How long after the beginning of the last backward pass each parameter's gradient was there, seconds, in the last step; 0 where
    /// there was none.
    pub fn parameter_ready_s(&self) -> Vec<f64> {
        let since =
            |at: Option<Instant>| at.map_or(0.0, |at| at.saturating_duration_since(self.backward_start).as_secs_f64());
        self.reducer.arrivals().into_iter().map(since).collect()
    }

    /// [`Synchronizer::staleness`].
    pub fn staleness(&self) -> Option<Option<u64>> {
        self.synchronizer.staleness()
    }

    /// What this rank sent for gradients since the last call.
    pub fn take_traffic(&mut self) -> StepTraffic {
        std::mem::take(&mut self.traffic)
    }

    /// How gradients reach the buckets and these the other ranks, in words.
    pub fn gradient_route(&self) -> &'static str {
        let is_possible = self.communicator.supports_threads();
        match (self.communicator.world_size() > 1, self.reducer.overlaps(), self.sink.is_some()) {
            (false, ..) if self.on_device.is_some() => "none, one rank, updated on the device",
            (false, ..) => "none, one rank",
            (true, true, true) => "layer by layer, reduced beside the backward pass",
            (true, true, false) => "after the backward pass, as this model hands none over, reduced by a thread",
            (true, false, _) if self.config.sync.overlap && !is_possible => {
                "after the backward pass, as this MPI library lets one thread call it (MPI_THREAD_MULTIPLE is needed for overlap)"
            }
            (true, false, _) => "after the backward pass",
        }
    }

    /// The factor on the next step's loss.
    pub fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }

    /// Continues from a saved model (parameters and norm statistics), saved velocities and, if it was saved, the loss scale.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn restore(&mut self, model: M, velocities: &[f32], loss_scale: Option<LossScale>) -> Result<()> {
        self.loss_scale = loss_scale.unwrap_or(self.loss_scale);
        match &mut self.on_device {
            Some(on_device) => on_device.sgd.restore(&model, velocities),
            None => self.optimizer.restore(&read(&model, self.reducer.layout()), velocities),
        }
        self.model = model;
        self.tell_servers()?;
        self.connect()
    }

    /// What the reduction of gradients carries from one step to the next: [`GradientReducer::carried`].
    pub fn carried(&self) -> Option<Carried> {
        self.reducer.carried()
    }

    /// Goes on after `num_steps` steps with what was carried then: [`GradientReducer::go_on`].
    ///
    /// # Panics
    /// When a length is not that of what is [carried](Self::carried).
    pub fn go_on(&mut self, num_steps: u64, carried: &Carried) {
        self.reducer.go_on(num_steps, carried);
    }

    /// Makes one step.
    ///
    /// The gradient is the exact mean over the step's samples, whichever rank holds how many: each rank's loss is the sum over
    /// its samples divided by the global number of samples, and gradients are summed. A rank that updates alone, or a server by
    /// itself, takes the mean over its own samples.
    ///
    /// To `sums` it adds those of this step; where the device updates, those of the steps that have been read, while this one may
    /// still be under way: [`settle`](Self::settle) waits for it.
    ///
    /// # Errors
    /// A non-finite loss or gradient on any rank (before the update, on all ranks) unless such steps are skipped, or ranks that
    /// drifted apart. Where the device updates and no step is skipped, the first comes a step late, or from `settle`.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same position.
    pub fn step(
        &mut self,
        at: StepPosition,
        loaded: LoadedStep<DeviceBatch>,
        learning_rate: f64,
        stop: bool,
        sums: &mut ScoreSums,
        clock: &mut PhaseClock,
    ) -> Result<StepEnd> {
        self.config.whereabouts.at(at.epoch, at.step);
        if self.on_device.is_some() {
            return self.step_on_device(at, loaded, learning_rate, stop, sums, clock);
        }
        let norm_statistics = self.may_skip().then(|| read(&self.model, &self.state_layout));
        let num_own: usize = loaded.micro_batches.iter().map(|batch| batch.labels.len()).sum();
        let mut header = StepHeader {
            epoch: at.epoch,
            step: at.step,
            plan_hash: self.reducer.plan().hash(),
            stop,
            num_samples: num_own as u64,
            finite: true,
        };
        let togetherness = self.synchronizer.togetherness(at.step, at.must_meet);
        let (is_together, is_asynchronous) =
            (togetherness == Togetherness::Together, self.synchronizer.is_asynchronous());
        if let Some(client) = self.synchronizer.client() {
            client.begin_step(learning_rate, num_own > 0);
        }
        let announces = is_together && !is_asynchronous;
        let divisor = if announces { loaded.global_num_samples } else { num_own.max(1) };
        if let Some(statistics) = &mut self.shard_statistics {
            statistics.begin_step(&self.model);
        }
        let mut local = ScoreSums::default();
        let last = loaded.micro_batches.len() - 1;
        for (index, batch) in loaded.micro_batches.into_iter().enumerate() {
            let is_last = index == last && is_together;
            let slab = self.synchronizer.virtual_shards().map_or(0, |_| index);
            let micro = MicroStep { divisor, slab, is_last, announces: is_last && announces };
            self.micro_step(batch, micro, &mut header, &mut local, clock)?;
        }
        header.finite = local.loss_sum.is_finite();

        self.traffic.num_steps += 1;
        self.config.whereabouts.enter(watchdog::Phase::Waiting);
        let mut agreement = match is_together {
            true => match (self.finish_together(learning_rate, clock), norm_statistics) {
                (Err(error), Some(norm_statistics)) => {
                    let end = self.leave_out(error)?;
                    self.model = write(self.model.clone(), &self.state_layout, &norm_statistics);
                    if end.overflowed {
                        // Its loss is as good as any; only its gradients were scaled too far.
                        *sums += local;
                    }
                    return Ok(end);
                }
                (agreement, _) => agreement.map_err(|error| self.blame_scale(error))?,
            },
            false => {
                self.finish_alone(learning_rate, num_own > 0, &mut header, clock);
                None
            }
        };
        // What a stopped run saves is on the servers.
        let must_meet = at.must_meet || agreement.is_some_and(|agreement| agreement.stop);
        let meets = togetherness == Togetherness::ThenAverage || (must_meet && self.synchronizer.client().is_some());
        if meets {
            let start = Instant::now();
            agreement = Some(agree(&*self.communicator, &header)?);
            self.meet(togetherness)?;
            clock.add_since(Phase::Communication, start);
        }
        if let Some(statistics) = &mut self.shard_statistics {
            let start = Instant::now();
            let num_shards = self.synchronizer.virtual_shards().unwrap_or(1).min(loaded.global_num_samples);
            self.model = statistics.end_step(self.model.clone(), num_shards)?;
            clock.add_since(Phase::Communication, start);
        }
        self.config.whereabouts.enter(watchdog::Phase::Optimizer);
        let start = Instant::now();
        self.model = write(self.model.clone(), self.reducer.layout(), self.optimizer.parameters());
        clock.add_since(Phase::Optimizer, start);

        self.loss_scale.note_good_step();
        *sums += local;
        Ok(StepEnd { stop: agreement.is_some_and(|agreement| agreement.stop), ..StepEnd::default() })
    }

    /// Waits for the results of all steps made so far, and adds those to `sums` that [`step`](Self::step) has not added.
    ///
    /// # Errors
    /// A non-finite loss or gradient in one of them.
    pub fn settle(&mut self, sums: &mut ScoreSums, clock: &mut PhaseClock) -> Result<()> {
        self.receive(0, sums, clock)
    }

    /// Whether a step that is not finite may be left out, instead of ending in an error.
    fn may_skip(&self) -> bool {
        self.config.skips_non_finite || self.loss_scale.is_dynamic()
    }
}
