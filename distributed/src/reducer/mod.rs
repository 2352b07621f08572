//! Sum of all ranks' gradients.
//!
//! In: gradients of one or more micro-steps, from hooks during a backward pass or from the tape
//! after the pass. Out: buckets of sums, the same bits on every rank.
//! Invariant: every rank reduces each bucket once, in bucket order. This includes a rank without
//! samples.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 3.2.

mod collector;
mod custom_loop;
mod gradients;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};

pub use collector::{GradientCollector, MicroStepConfig};
pub use gradients::{LocalGradients, SyncedBucket, SyncedGradients};
pub use worker::BucketTimes;
use worker::{Engine, Job, JobResult, SharedReduction, Worker};

use crate::algorithms::{AllReducer, ReductionKind};
use crate::communicator::expect_equal;
use crate::gradients::{BucketPlan, GlobalStepStatus};
use crate::header::{Largest, StepHeader, diagnose, global_status, parsed, wants_stop};
use crate::on_device::{ElementOrder, take_gradients, take_params};
use crate::reduction::{BucketContext, BucketReduction, ReductionState, Traffic};
use crate::replica::ParameterLayout;
use crate::watchdog::RankStatus;
use crate::{CollectiveError, Communicator};

/// Settings of a reducer.
#[derive(Clone, Debug)]
pub struct ReducerConfig {
    /// Maximum bytes of a bucket in `f32`. `None` selects [`BucketPlan::default_cap_bytes`].
    pub bucket_cap_bytes: Option<usize>,
    /// True if buckets are reduced during the backward pass. This needs a communicator that
    /// supports a second thread.
    pub overlap: bool,
    /// Status that names the bucket under reduction.
    pub rank_status: Arc<RankStatus>,
}

impl Default for ReducerConfig {
    fn default() -> Self {
        Self {
            bucket_cap_bytes: None,
            overlap: true,
            rank_status: Arc::default(),
        }
    }
}

/// Sum of gradients over micro-steps, then over ranks.
///
/// The caller's weights make the global mean exact. A rank's loss can be the sum over its samples
/// divided by the global number of samples, with weight 1. It can also be the mean over the rank's
/// samples, weighted by the rank's share of the samples.
///
/// A step starts with [`begin_step`](Self::begin_step). Each micro-batch needs
/// [`begin_micro_step`](Self::begin_micro_step), a backward pass, and
/// [`accumulate`](Self::accumulate). The step ends with [`reduce`](Self::reduce). The shortest step
/// is `accumulate` and `reduce`.
///
/// # Differs from PyTorch
/// `DistributedDataParallel` computes the plain mean over ranks, in which the samples of a rank
/// with fewer samples have too much weight.
#[derive(Debug)]
pub struct GradientReducer {
    collector: Arc<GradientCollector>,
    communicator: Arc<dyn Communicator>,
    reduction: SharedReduction,
    engine: Engine,
    /// True between the start and the end of a micro-step.
    is_open: bool,
    /// True if all ranks take part in every step, so that shares can be summed.
    checks_shares: bool,
    /// This rank's share of the current step.
    share: Option<f64>,
    /// Header of the current step, if it was posted.
    header: Option<StepHeader>,
    synced: Vec<SyncedBucket>,
    report: StepReport,
}

/// Measurements of a step's reduction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Bytes and errors of the sums.
    pub traffic: Traffic,
    /// Time of each bucket's reduction, in bucket order.
    pub buckets: Vec<BucketTimes>,
    /// Sum of the squared L2 norms of this rank's weighted micro-steps. 0 without
    /// [`measure_parts`](GradientReducer::measure_parts).
    pub squared_norm_of_parts: f64,
    /// True if a posted header requests a stop, even if [`finish`](GradientReducer::finish) failed
    /// because of a non-finite value.
    pub stop: bool,
}

impl GradientReducer {
    /// Returns a reducer of `module`'s trainable parameters that uses the communicator's own
    /// all-reduce.
    ///
    /// # Errors
    /// Returns an error on all ranks if the plans differ. The error names the first rank that
    /// differs.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new<M: Module>(
        module: &M,
        communicator: Arc<dyn Communicator>,
        config: &ReducerConfig,
    ) -> Result<Self, CollectiveError> {
        let mut reducer = Self::with_reduction(module, communicator, config, |_, own| {
            Ok(Box::new(AllReducer::new(ReductionKind::Library, own)?))
        })?;
        reducer.checks_shares = true;
        Ok(reducer)
    }

    /// Returns a reducer like [`new`](Self::new), with a custom reduction. `reduction` creates it
    /// from the plan and a communicator that only the reduction uses.
    ///
    /// # Errors
    /// Returns an error in the cases of [`new`](Self::new), and the errors of `reduction`.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn with_reduction<M: Module>(
        module: &M,
        communicator: Arc<dyn Communicator>,
        config: &ReducerConfig,
        reduction: impl FnOnce(
            (&ParameterLayout, &BucketPlan),
            Arc<dyn Communicator>,
        ) -> Result<Box<dyn BucketReduction>, CollectiveError>,
    ) -> Result<Self, CollectiveError> {
        let layout = ParameterLayout::new(module);
        layout.expect_unshared()?;
        let default = || BucketPlan::default_cap_bytes(layout.num_elements() * size_of::<f32>());
        let plan = BucketPlan::new(&layout, config.bucket_cap_bytes.unwrap_or_else(default));
        let description = format!(
            "{} parameters with {} elements in {} buckets (hash {:016x})",
            layout.entries().len(),
            layout.num_elements(),
            plan.buckets().len(),
            plan.hash()
        );
        expect_equal(&*communicator, "bucket plan", &description)?;
        let overlaps =
            config.overlap && communicator.world_size() > 1 && communicator.supports_threads();
        let own = if overlaps {
            communicator.duplicate()?
        } else {
            Arc::clone(&communicator)
        };
        let reduction = reduction((&layout, &plan), Arc::clone(&own))?;
        let num_slots = reduction.num_slots();
        let reduction = Arc::new(Mutex::new(reduction));
        let rank_status = Arc::clone(&config.rank_status);
        let (worker, jobs) = Worker::new(own, Arc::clone(&reduction), rank_status);
        let engine = if overlaps {
            Engine::background(worker).map_err(CollectiveError::no_thread)?
        } else {
            Engine::Inline(worker)
        };
        Ok(Self {
            collector: Arc::new(GradientCollector::new(layout, plan, num_slots, jobs)),
            communicator,
            reduction,
            engine,
            is_open: false,
            checks_shares: false,
            share: None,
            header: None,
            synced: Vec::new(),
            report: StepReport::default(),
        })
    }

    /// Returns the collector for a model's gradient hooks.
    pub fn collector(&self) -> Arc<GradientCollector> {
        Arc::clone(&self.collector)
    }

    /// Returns true if buckets are reduced during the backward pass.
    pub fn overlaps(&self) -> bool {
        matches!(self.engine, Engine::Background { .. })
    }

    /// Measures the squared norms of micro-steps for the [report](Self::report) from now on.
    pub fn measure_parts(&self) {
        self.collector.lock().squares = Some(0.0);
    }

    /// Starts a step and sets the context of its buckets. The call is necessary if the reduction
    /// uses the context, or if hooks deliver gradients before the first
    /// [`begin_micro_step`](Self::begin_micro_step).
    pub fn begin_step(&mut self, context: BucketContext) {
        self.reclaim_buffers();
        self.collector.lock().context = context;
    }

    /// Returns the buffers of the last step to the collector.
    fn reclaim_buffers(&mut self) {
        for (index, bucket) in self.synced.drain(..).enumerate() {
            self.collector.give_back(index, bucket.values);
        }
        self.report = StepReport::default();
    }

    /// Starts the next micro-step with the settings in `config`.
    pub fn begin_micro_step(&mut self, config: MicroStepConfig) {
        self.reclaim_buffers();
        self.is_open = true;
        self.engine.sleep();
        self.collector.begin_micro_step(config);
    }

    /// Sends the step's header to the other ranks before the buckets. The caller posts one header
    /// per step, before the last backward pass. [`reduce`](Self::reduce) then starts with the
    /// agreement of all ranks on the header.
    pub fn post_header(&mut self, header: StepHeader) {
        self.reclaim_buffers();
        self.header = Some(header);
        self.engine.sleep();
        let bytes = header.to_bytes().to_vec();
        self.collector.lock().send(Job::Header(bytes));
    }

    /// Ends the micro-step with the gradients on the tape of its backward pass. Gradients that
    /// hooks received are not on the tape. A parameter without a gradient adds zero.
    ///
    /// Without [`begin_micro_step`](Self::begin_micro_step) the call starts a micro-step of weight
    /// `weight`, which other micro-steps may follow.
    ///
    /// # Panics
    /// Panics if the structures of `module` and the reducer's module differ. Panics if hooks
    /// delivered gradients with ids that `module` does not have. [`rename`](Self::rename) sets the
    /// ids.
    pub fn accumulate<M: Module>(&mut self, module: &M, gradients: Gradients, weight: f32) {
        self.expect_ids(module);
        let gradients = take_gradients(module, self.layout(), ElementOrder::Module, gradients);
        self.close_micro_step(gradients, weight);
    }

    /// Accumulates gradients like [`accumulate`](Self::accumulate), but from the container for
    /// burn's optimizers.
    ///
    /// # Panics
    /// Panics in the cases of [`accumulate`](Self::accumulate).
    pub fn accumulate_params<M: Module>(
        &mut self,
        module: &M,
        gradients: GradientsParams,
        weight: f32,
    ) {
        self.expect_ids(module);
        let gradients = take_params(module, self.layout(), gradients);
        self.close_micro_step(gradients, weight);
    }

    fn close_micro_step(&mut self, gradients: Vec<Option<Tensor<1>>>, weight: f32) {
        if !self.is_open {
            self.begin_micro_step(MicroStepConfig {
                weight,
                ..MicroStepConfig::default()
            });
        }
        self.is_open = false;
        self.collector.end_micro_step(gradients);
    }

    /// Sums the accumulated gradients over all ranks, bucket by bucket. The next accumulation
    /// starts from zero. A rank without accumulated gradients contributes zeros.
    ///
    /// # Errors
    /// Returns an error if a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn reduce(&mut self) -> Result<SyncedGradients<'_>, CollectiveError> {
        self.finish()?;
        Ok(self.synced())
    }

    /// Reduces like [`reduce`](Self::reduce), with agreement on a posted header and a check that
    /// all sums are finite. [`synced`](Self::synced) returns the sums.
    ///
    /// # Errors
    /// Returns an error, the same on all ranks, if the ranks have diverged, and
    /// [`CollectiveError::NonFinite`] if a value is not finite. Also returns an error if a
    /// collective fails.
    ///
    /// The next step may start only after [`CollectiveError::NonFinite`]. All buckets have then
    /// returned, and the reduction has its state from before this step.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn finish(&mut self) -> Result<Option<GlobalStepStatus>, CollectiveError> {
        self.reclaim_buffers();
        self.collector.complete();
        let squares = self.collector.lock().squares.as_mut().map(std::mem::take);
        self.report.squared_norm_of_parts = squares.unwrap_or(0.0);
        self.engine.spin();
        let header = self.header.take();
        let mut status = Ok(None);
        if header.is_some()
            && let JobResult::Headers(headers) = self.next_result()?
        {
            let headers = parsed(&headers)?;
            self.report.stop = wants_stop(&headers);
            status = match global_status(&headers) {
                // This step's buckets are being reduced nevertheless.
                Err(error @ CollectiveError::NonFinite { .. }) => Err(error),
                status => Ok(Some(status?)),
            };
        }
        let mut broken = None;
        for index in 0..self.plan().buckets().len() {
            let JobResult::Bucket {
                values,
                is_finite,
                traffic,
                times,
            } = self.next_result()?
            else {
                continue;
            };
            let bucket = SyncedBucket {
                elements: self.plan().buckets()[index].elements.clone(),
                values,
            };
            self.report.traffic += traffic;
            self.report.buckets.push(times);
            if broken.is_none() && !is_finite {
                broken = Some(index);
            }
            self.synced.push(bucket);
        }
        // Headers and sums are the same on every rank, so all ranks take the same branch.
        if status.is_err() || broken.is_some() {
            lock(&self.reduction).roll_back();
        }
        if self.checks_shares && header.is_none() {
            self.check_shares()?;
        }
        let status = status?;
        if let (Some(bucket), Some(header)) = (broken, header) {
            let (parameter, value) = self.collector.lock().buckets[bucket].largest;
            let own = Largest { parameter, value };
            let communicator = &*self.communicator;
            return Err(diagnose(communicator, header.step, own, self.layout())?);
        }
        Ok(status)
    }

    fn next_result(&mut self) -> Result<JobResult, CollectiveError> {
        let result = self.engine.next()?;
        self.collector.lock().num_pending -= 1;
        Ok(result)
    }

    /// Ends a step without communication and returns the sums of only this rank. The step must not
    /// include [`post_header`](Self::post_header) or a last micro-step.
    pub fn finish_local(&mut self) -> LocalGradients<'_> {
        self.reclaim_buffers();
        self.collector.finish_local()
    }

    /// Returns the buckets of the last reduction, summed over all ranks. They are available until
    /// the next step starts.
    pub fn synced(&mut self) -> SyncedGradients<'_> {
        SyncedGradients::new(self.collector.layout(), &mut self.synced)
    }

    /// Returns the measurements of the last reduction.
    pub fn report(&self) -> &StepReport {
        &self.report
    }

    /// Returns the reduction's state between two steps, as [`BucketReduction::state`] describes.
    pub fn reduction_state(&self) -> Option<ReductionState> {
        lock(&self.reduction).state()
    }

    /// Restores the state after `num_steps` steps, as [`BucketReduction::restore`] describes.
    ///
    /// # Panics
    /// Panics if a length differs from that of the [current state](Self::reduction_state).
    pub fn restore(&self, num_steps: u64, state: &ReductionState) {
        lock(&self.reduction).restore(num_steps, state);
    }

    /// Returns the time of each parameter's last gradient in the order of the layout. `None` before
    /// the first gradient.
    pub fn arrivals(&self) -> Vec<Option<Instant>> {
        let state = self.collector.lock();
        let parameters = state.parameters.iter();
        parameters.map(|parameter| parameter.arrival).collect()
    }

    /// Returns the layout of the gradients.
    pub fn layout(&self) -> &ParameterLayout {
        self.collector.layout()
    }

    /// Returns the buckets.
    pub fn plan(&self) -> &BucketPlan {
        self.collector.plan()
    }
}

impl Drop for GradientReducer {
    fn drop(&mut self) {
        let num_pending = {
            let mut state = self.collector.lock();
            state.jobs = None;
            state.num_pending
        };
        // With a pending job, the thread may be waiting for ranks that have failed.
        if num_pending == 0 {
            self.engine.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock means that a pass or a sum panicked. The job ends with that panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
