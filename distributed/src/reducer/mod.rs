//! From every rank's gradients to their sum over all ranks.
//!
//! In: gradients as a backward pass makes them, or all at its end; micro-step after micro-step. Out: buckets of sums, the same
//! bits on every rank. Invariant: one reduction a bucket, in bucket order, on every rank, also on one that had no sample.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 3.2.

mod collector;
mod engine;
mod own_loop;
mod synced;

use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};

pub use collector::{GradientCollector, MicroStepConfig};
pub use engine::BucketTimes;
use engine::{Engine, Finished, SharedReduction, Worker};
pub use synced::{LocalBucket, SyncedBucket, SyncedGradients};

use crate::communicator::expect_equal;
use crate::header::{Largest, StepHeader, diagnose, global_status, parsed, wants_stop};
use crate::layout::with_values;
use crate::on_device::{ElementOrder, take_gradients, take_params};
use crate::reduction::{BucketContext, BucketReduction, ReductionState, Traffic};
use crate::{
    CollectiveError, Communicator,
    gradients::{BucketPlan, GlobalStepStatus},
    reduction::{AllReducer, ReductionKind},
    replica::ParameterLayout,
};

/// How gradients travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReducerConfig {
    /// Largest size of a bucket, bytes of `f32`; `None`: as the gradients' size suggests, [`BucketPlan::default_cap_bytes`].
    pub bucket_cap_bytes: Option<usize>,
    /// Whether buckets travel while the backward pass goes on, where the communicator allows a second thread.
    pub overlap: bool,
}

impl Default for ReducerConfig {
    fn default() -> Self {
        Self {
            bucket_cap_bytes: None,
            overlap: true,
        }
    }
}

/// Adds up gradients over micro-steps, then over ranks.
///
/// The global mean is exact because the caller weights: either a rank's loss is the sum over its samples divided by the global
/// number of samples (weight 1), or its mean loss is weighted by its share of the samples.
///
/// A step is: [`begin_step`](Self::begin_step); for each micro-batch [`begin_micro_step`](Self::begin_micro_step), a backward
/// pass, and [`accumulate`](Self::accumulate); [`reduce`](Self::reduce). In short, `accumulate` and `reduce` suffice.
///
/// # Differs from PyTorch
/// `DistributedDataParallel` takes the plain mean over ranks, which over-weights the samples of a rank that has fewer.
#[derive(Debug)]
pub struct GradientReducer {
    collector: Arc<GradientCollector>,
    communicator: Arc<dyn Communicator>,
    reduction: SharedReduction,
    engine: Engine,
    /// Whether a micro-step was opened and not closed.
    is_open: bool,
    /// Whether all ranks meet in every step, so that shares can be summed.
    checks_shares: bool,
    /// This rank's share of the step under way.
    share: Option<f64>,
    /// The step under way, where its header was posted.
    header: Option<StepHeader>,
    synced: Vec<SyncedBucket>,
    report: StepReport,
}

/// What the reduction of a step was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    /// What was sent.
    pub traffic: Traffic,
    /// When each bucket was complete and reduced.
    pub buckets: Vec<BucketTimes>,
    /// The squared L2 norm of each of this rank's micro-steps, weighted, added up over them; 0 unless
    /// [`measure_parts`](GradientReducer::measure_parts) asked for it.
    pub squared_norm_of_parts: f64,
    /// Whether a posted header wished the run to end, also where [`finish`](GradientReducer::finish) found something that is not finite.
    pub stop: bool,
}

impl GradientReducer {
    /// Plans the buckets of `module`'s trainable parameters, to be summed by the communicator's own collective.
    ///
    /// # Errors
    /// [`CollectiveError::PlanMismatch`] on all ranks when the plans differ, naming the first rank that does.
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

    /// As [`new`](Self::new), with the reduction that `reduction` makes of the plan and a communicator of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of `reduction`.
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
        let reduction = SharedReduction::new(reduction((&layout, &plan), Arc::clone(&own))?);
        let num_slots = reduction.lock().num_slots();
        let (worker, job_sender) = Worker::new(own, reduction.clone());
        let engine = match overlaps {
            true => Engine::background(worker).map_err(|error| CollectiveError::Thread {
                text: error.to_string(),
            })?,
            false => Engine::Inline(worker),
        };
        let collector = Arc::new(GradientCollector::new(layout, plan, num_slots, job_sender));
        let (synced, report) = (Vec::new(), StepReport::default());
        Ok(Self {
            collector,
            communicator,
            reduction,
            engine,
            is_open: false,
            checks_shares: false,
            share: None,
            header: None,
            synced,
            report,
        })
    }

    /// Where a model's hooks put gradients: [`GradientCollector::take`].
    pub fn collector(&self) -> Arc<GradientCollector> {
        Arc::clone(&self.collector)
    }

    /// Whether buckets travel beside the backward pass.
    pub fn overlaps(&self) -> bool {
        self.engine.is_beside()
    }

    /// From now on the [report](Self::report) has the squared norms of micro-steps, taken on the gradients' way into the buckets.
    pub fn measure_parts(&self) {
        self.collector.measure_parts();
    }

    /// Begins a step whose buckets bring `context` along. Needed where the reduction asks for that, and where hooks give gradients
    /// before the first [`begin_micro_step`](Self::begin_micro_step).
    pub fn begin_step(&mut self, context: BucketContext) {
        self.reclaim_buffers();
        self.collector.begin_step(context);
    }

    /// Takes back the buffers of the last step.
    fn reclaim_buffers(&mut self) {
        for bucket in self.synced.drain(..) {
            self.collector.give_back(bucket.index, bucket.values);
        }
        self.report = StepReport::default();
    }

    /// Opens the next micro-step: what arrives from now on is multiplied by `weight` and added up.
    pub fn begin_micro_step(&mut self, how: MicroStepConfig) {
        self.reclaim_buffers();
        self.is_open = true;
        self.engine.begin();
        self.collector.begin_micro_step(how);
    }

    /// Tells the other ranks of this step; buckets follow. To be called once a step, before the last backward pass.
    ///
    /// Then [`reduce`](Self::reduce) agrees with all ranks on the header first.
    pub fn post_header(&mut self, header: StepHeader) {
        self.reclaim_buffers();
        self.header = Some(header);
        self.engine.begin();
        self.collector.send_header(header.to_bytes().to_vec());
    }

    /// Closes the micro-step with what its backward pass left on the tape: what hooks have given is not there any more.
    ///
    /// Without [`begin_micro_step`](Self::begin_micro_step) it opens one, of weight `weight`, that may be followed by others.
    /// A parameter without a gradient adds zero.
    ///
    /// # Panics
    /// When `module` is not built like the one the reducer was made for, or hooks gave gradients under other ids than the module's:
    /// [`rename`](Self::rename) the reducer first.
    pub fn accumulate<M: Module>(&mut self, module: &M, gradients: Gradients, weight: f32) {
        self.expect_ids(module);
        let gradients = take_gradients(
            module,
            self.collector.layout(),
            ElementOrder::Module,
            gradients,
        );
        self.close_micro_step(gradients, weight);
    }

    /// As [`accumulate`](Self::accumulate), of gradients that were taken from the tape for burn's optimizers.
    ///
    /// # Panics
    /// As [`accumulate`](Self::accumulate).
    pub fn accumulate_params<M: Module>(
        &mut self,
        module: &M,
        gradients: GradientsParams,
        weight: f32,
    ) {
        self.expect_ids(module);
        let gradients = take_params(module, self.collector.layout(), gradients);
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
        for (index, gradient) in gradients.into_iter().enumerate() {
            if let Some(gradient) = gradient {
                with_values(gradient, |values| self.collector.put_entry(index, values));
            }
        }
        self.collector.end_micro_step();
    }

    /// Sums the accumulated gradients over all ranks, bucket by bucket; the next accumulation starts from zero.
    ///
    /// A rank that accumulated nothing contributes zeros.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn reduce(&mut self) -> Result<SyncedGradients<'_>, CollectiveError> {
        self.finish()?;
        Ok(SyncedGradients::new(
            self.collector.layout(),
            &mut self.synced,
        ))
    }

    /// As [`reduce`](Self::reduce), with agreement on a posted header and a look at finiteness; the sums are [`synced`](Self::synced).
    ///
    /// # Errors
    /// [`CollectiveError::RanksDiverged`] and [`CollectiveError::NonFinite`], the same on all ranks; or a collective failed. After
    /// [`CollectiveError::NonFinite`] alone the next step may begin: all buckets have come back, and the reduction's state is
    /// that from before this step.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn finish(&mut self) -> Result<Option<GlobalStepStatus>, CollectiveError> {
        self.reclaim_buffers();
        self.collector.complete();
        self.report.squared_norm_of_parts = self.collector.take_squares();
        self.report.stop = false;
        self.engine.spin();
        let header = self.header.take();
        let mut status = Ok(None);
        if header.is_some()
            && let Finished::Headers(headers) = self.engine.next()?
        {
            let headers = parsed(&headers)?;
            self.report.stop = wants_stop(&headers);
            status = match global_status(&headers) {
                // This step's buckets are on their way all the same.
                Err(error @ CollectiveError::NonFinite { .. }) => Err(error),
                status => Ok(Some(status?)),
            };
        }
        let mut broken = None;
        for _ in 0..self.plan().buckets().len() {
            let Finished::Bucket {
                index,
                values,
                traffic,
                times,
            } = self.engine.next()?
            else {
                continue;
            };
            let elements = self.plan().buckets()[index].elements.clone();
            let bucket = SyncedBucket {
                index,
                elements,
                values,
            };
            self.report.traffic += traffic;
            self.report.buckets.push(times);
            if broken.is_none() && !bucket.is_finite() {
                broken = Some(index);
            }
            self.synced.push(bucket);
        }
        // The same on every rank: headers and sums are. Such a step is not made, or not worth going on from.
        if status.is_err() || broken.is_some() {
            self.reduction.lock().roll_back();
        }
        if self.checks_shares && header.is_none() {
            self.check_shares()?;
        }
        match (status?, broken, header) {
            (_, Some(bucket), Some(header)) => {
                let (parameter, value) = self.collector.largest(bucket);
                let own = Largest { parameter, value };
                Err(diagnose(
                    &*self.communicator,
                    header.step,
                    own,
                    self.layout(),
                )?)
            }
            (status, ..) => Ok(status),
        }
    }

    /// Ends a step that this rank takes alone: its own sums go to `use_buckets`, with whether all values are finite, and nothing to the
    /// others. Neither [`post_header`](Self::post_header) nor a last micro-step may have been part of it.
    pub fn finish_local<T>(
        &mut self,
        use_buckets: impl FnOnce(&[LocalBucket<'_>], bool) -> T,
    ) -> T {
        self.reclaim_buffers();
        self.collector.finish_local(use_buckets)
    }

    /// The buckets of the last reduction, summed over all ranks, until the next step begins.
    pub fn synced(&mut self) -> SyncedGradients<'_> {
        SyncedGradients::new(self.collector.layout(), &mut self.synced)
    }

    /// What the last reduction was.
    pub fn report(&self) -> &StepReport {
        &self.report
    }

    /// Returns the reduction's state between two steps: [`BucketReduction::state`].
    pub fn reduction_state(&self) -> Option<ReductionState> {
        self.reduction.lock().state()
    }

    /// Continues after `num_steps` steps with the state from then: [`BucketReduction::restore`].
    ///
    /// # Panics
    /// If a length differs from that of the [own state](Self::reduction_state).
    pub fn restore(&self, num_steps: u64, state: &ReductionState) {
        self.reduction.lock().restore(num_steps, state);
    }

    /// When each parameter of the layout got its last gradient, or was found to get none; `None` before the first.
    pub fn arrivals(&self) -> Vec<Option<Instant>> {
        self.collector.arrivals()
    }

    /// Where each parameter's gradient lies.
    pub fn layout(&self) -> &ParameterLayout {
        self.collector.layout()
    }

    /// The buckets.
    pub fn plan(&self) -> &BucketPlan {
        self.collector.plan()
    }
}

impl Drop for GradientReducer {
    fn drop(&mut self) {
        self.collector.close();
        self.engine.join();
    }
}
