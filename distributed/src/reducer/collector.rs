//! Collection of gradients into buckets.
//!
//! In: gradients, one parameter at a time, from any thread. Out: full buckets, in bucket order.
//! Invariant: a bucket leaves once per step, after the last micro-step has delivered all of the
//! bucket's parameters.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use burn::module::ParamId;
use burn::tensor::Tensor;

use super::gradients::{LocalGradients, squares};
use super::lock;
use super::worker::Job;
use crate::gradients::BucketPlan;
use crate::header::magnitude_bits;
use crate::layout::with_values;
use crate::reduction::BucketContext;
use crate::replica::ParameterLayout;

/// Buckets that a backward pass fills. A reducer and the hooks of a model share them.
#[derive(Debug)]
pub struct GradientCollector {
    layout: ParameterLayout,
    plan: BucketPlan,
    /// Bucket of every parameter of the layout.
    bucket_of: Vec<usize>,
    num_slots: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Index in the layout, by burn's parameter id.
    entries: HashMap<ParamId, usize>,
    pub(super) parameters: Vec<ParameterState>,
    pub(super) buckets: Vec<BucketState>,
    /// True if a hook has delivered any parameter's gradient in this micro-step.
    pub(super) has_taken: bool,
    pub(super) context: BucketContext,
    micro_step: MicroStepConfig,
    /// True if a micro-step of this step has written the slot.
    is_written: Vec<bool>,
    /// Bits of the largest magnitude of each parameter in a slot, slot by slot.
    largest: Vec<u32>,
    /// True if this is the first micro-step of its slot, which overwrites the values of the last
    /// step.
    overwrites: bool,
    /// Index of the next bucket to leave.
    next: usize,
    /// Sender of jobs, or `None` after the last job.
    pub(super) jobs: Option<Sender<Job>>,
    /// Number of jobs whose results the reducer has not received.
    pub(super) num_pending: usize,
    /// Sum of the squared norms of this step's micro-steps, if they are measured.
    pub(super) squares: Option<f64>,
}

impl State {
    /// Queues a job. This fails only if the communication thread has exited; `Engine::next` reports
    /// the reason.
    pub(super) fn send(&mut self, job: Job) {
        self.num_pending += 1;
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

#[derive(Debug)]
pub(super) struct ParameterState {
    id: ParamId,
    /// True if any micro-step had a gradient of this parameter.
    was_used: bool,
    /// True if this micro-step has the parameter's gradient.
    has_arrived: bool,
    /// Time of the parameter's last gradient.
    pub(super) arrival: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct BucketState {
    /// Values of the bucket. Empty while the bucket is being reduced.
    pub(super) values: Vec<f32>,
    /// Number of parameters without a gradient in this micro-step.
    num_missing: usize,
    /// Parameter and magnitude of the largest gradient when the bucket left. NaN counts as largest.
    pub(super) largest: (u32, f32),
}

/// Settings of a micro-step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroStepConfig {
    /// Factor of the gradients.
    pub weight: f32,
    /// The accumulation slot, below
    /// [`BucketReduction::num_slots`](crate::reduction::BucketReduction::num_slots).
    pub slot: usize,
    /// True for the step's last micro-step, in which buckets leave as soon as they are full.
    pub is_last: bool,
    /// True if the gradients are dropped, because the pass only took part in collectives.
    pub discard: bool,
}

impl Default for MicroStepConfig {
    fn default() -> Self {
        Self {
            weight: 1.0,
            slot: 0,
            is_last: false,
            discard: false,
        }
    }
}

impl GradientCollector {
    pub(super) fn new(
        layout: ParameterLayout,
        plan: BucketPlan,
        num_slots: usize,
        jobs: Sender<Job>,
    ) -> Self {
        let mut bucket_of = vec![0; layout.entries().len()];
        let mut buckets = Vec::with_capacity(plan.buckets().len());
        for (index, bucket) in plan.buckets().iter().enumerate() {
            bucket_of[bucket.parameters.clone()].fill(index);
            buckets.push(BucketState {
                values: vec![0.0; num_slots * bucket.elements.len()],
                num_missing: bucket.parameters.len(),
                largest: (0, 0.0),
            });
        }
        let parameters = layout.entries().iter().map(|entry| ParameterState {
            id: entry.id,
            was_used: false,
            has_arrived: false,
            arrival: None,
        });
        let state = State {
            entries: by_id(&layout),
            parameters: parameters.collect(),
            buckets,
            has_taken: false,
            context: BucketContext::default(),
            micro_step: MicroStepConfig::default(),
            is_written: vec![false; num_slots],
            largest: vec![0; num_slots * bucket_of.len()],
            overwrites: true,
            next: 0,
            jobs: Some(jobs),
            num_pending: 0,
            squares: None,
        };
        Self {
            layout,
            plan,
            bucket_of,
            num_slots,
            state: Mutex::new(state),
        }
    }

    /// Adds one parameter's gradient of the current backward pass. Ignores gradients of other
    /// modules. Parameters have the ids of the module in the last call of
    /// [`backward`](super::GradientReducer::backward) or
    /// [`rename`](super::GradientReducer::rename).
    ///
    /// # Panics
    /// Panics if the lengths of gradient and parameter differ, or if the pass has already delivered
    /// this gradient.
    pub fn take(&self, parameter: ParamId, gradient: &[f32]) {
        let mut state = self.lock();
        state.has_taken = true;
        if let Some(&entry) = state.entries.get(&parameter) {
            self.put(&mut state, entry, Some(gradient));
        }
    }

    /// Returns the bucket of a parameter and the number of parameters in that bucket. Returns
    /// `None` for an unknown parameter.
    pub fn bucket_of(&self, parameter: ParamId) -> Option<(usize, usize)> {
        let entry = *self.lock().entries.get(&parameter)?;
        let bucket = self.bucket_of[entry];
        Some((bucket, self.plan.buckets()[bucket].parameters.len()))
    }

    pub(super) fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    pub(super) fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sets the ids of the parameters to those of `layout`, which belongs to the same module,
    /// rebuilt or loaded.
    pub(super) fn rename(&self, layout: &ParameterLayout) {
        let mut state = self.lock();
        state.entries = by_id(layout);
        for (parameter, entry) in state.parameters.iter_mut().zip(layout.entries()) {
            parameter.id = entry.id;
        }
    }

    /// Returns true if `ids` are the ids of the parameters.
    pub(super) fn knows(&self, ids: &[ParamId]) -> bool {
        let state = self.lock();
        state
            .parameters
            .iter()
            .map(|parameter| &parameter.id)
            .eq(ids)
    }

    /// Returns the layout indices of parameters without a gradient in any micro-step so far. Empty
    /// before the first gradient.
    pub(super) fn unused(&self) -> Vec<usize> {
        let parameters = &self.lock().parameters;
        if parameters.iter().all(|parameter| !parameter.was_used) {
            return Vec::new();
        }
        (0..parameters.len())
            .filter(|&entry| !parameters[entry].was_used)
            .collect()
    }

    /// Opens the next micro-step of this step.
    pub(super) fn begin_micro_step(&self, config: MicroStepConfig) {
        assert!(
            config.slot < self.num_slots,
            "slot {}: expected below {}",
            config.slot,
            self.num_slots
        );
        let mut state = self.lock();
        state.micro_step = config;
        if !config.discard {
            state.overwrites = !mem::replace(&mut state.is_written[config.slot], true);
        }
        for parameter in &mut state.parameters {
            parameter.has_arrived = false;
        }
        for (bucket, planned) in state.buckets.iter_mut().zip(self.plan.buckets()) {
            bucket.num_missing = planned.parameters.len();
        }
    }

    /// Ends the micro-step with the gradients that no hook has delivered. All missing gradients are
    /// zero.
    pub(super) fn end_micro_step(&self, gradients: Vec<Option<Tensor<1>>>) {
        let mut state = self.lock();
        for (entry, gradient) in gradients.into_iter().enumerate() {
            if let Some(gradient) = gradient {
                with_values(gradient, |values| self.put(&mut state, entry, Some(values)));
            }
        }
        state.has_taken = false;
        for entry in (0..self.bucket_of.len()).rev() {
            if !state.parameters[entry].has_arrived {
                self.put(&mut state, entry, None);
            }
        }
    }

    /// Ends the step with the accumulated gradients. All remaining buckets leave.
    pub(super) fn complete(&self) {
        let mut state = self.lock();
        self.clear_unwritten(&mut state);
        for bucket in &mut state.buckets {
            bucket.num_missing = 0;
        }
        self.release(&mut state);
    }

    /// Ends the step without a reduction.
    pub(super) fn finish_local(&self) -> LocalGradients<'_> {
        let mut state = self.lock();
        self.clear_unwritten(&mut state);
        state.is_written.fill(false);
        LocalGradients::new(&self.plan, state)
    }

    /// Returns a bucket's buffer to the collector. After the last buffer the next step may start.
    pub(super) fn give_back(&self, index: usize, mut values: Vec<f32>) {
        let mut state = self.lock();
        let len = self.num_slots * self.plan.buckets()[index].elements.len();
        values.resize(len, 0.0);
        state.buckets[index].values = values;
        state.next -= 1;
        if state.next == 0 {
            state.is_written.fill(false);
        }
    }

    fn put(&self, state: &mut State, entry: usize, gradient: Option<&[f32]>) {
        let MicroStepConfig {
            weight,
            slot,
            is_last,
            discard,
        } = state.micro_step;
        if discard {
            return;
        }
        let bucket = self.bucket_of[entry];
        let description = &self.layout.entries()[entry];
        let parameter = &mut state.parameters[entry];
        assert!(
            !mem::replace(&mut parameter.has_arrived, true),
            "{}: a second gradient in one backward pass, expected one. Run each use of a module that \
             is used twice in a PassContext without a hook",
            description.path
        );
        parameter.arrival = Some(Instant::now());
        parameter.was_used |= gradient.is_some();
        let elements = &self.plan.buckets()[bucket].elements;
        let start = slot * elements.len() + description.offset - elements.start;
        let bucket = &mut state.buckets[bucket];
        let sums = &mut bucket.values[start..start + description.len];
        if let Some(gradient) = gradient {
            if let Some(sum) = &mut state.squares {
                *sum += f64::from(weight).powi(2) * squares(gradient);
            }
            assert_eq!(
                gradient.len(),
                sums.len(),
                "{}: gradient and parameter differ in length",
                description.path
            );
            state.largest[slot * self.bucket_of.len() + entry] = if state.overwrites {
                update(sums, gradient, |_, value| weight * value)
            } else {
                update(sums, gradient, |sum, value| sum + weight * value)
            };
        } else if state.overwrites {
            sums.fill(0.0);
            state.largest[slot * self.bucket_of.len() + entry] = 0;
        }
        bucket.num_missing -= 1;
        if is_last {
            self.release(state);
        }
    }

    /// Fills slots without samples with zeros.
    fn clear_unwritten(&self, state: &mut State) {
        for slot in 0..self.num_slots {
            if state.is_written[slot] {
                continue;
            }
            let num_parameters = self.bucket_of.len();
            state.largest[slot * num_parameters..][..num_parameters].fill(0);
            for (bucket, planned) in state.buckets.iter_mut().zip(self.plan.buckets()) {
                let len = planned.elements.len();
                bucket.values[slot * len..(slot + 1) * len].fill(0.0);
            }
        }
    }

    /// Sends full buckets to the reduction, in order.
    fn release(&self, state: &mut State) {
        while let Some(bucket) = state.buckets.get_mut(state.next)
            && bucket.num_missing == 0
        {
            let index = state.next;
            let values = mem::take(&mut bucket.values);
            bucket.largest = largest_of(
                &state.largest,
                self.bucket_of.len(),
                &self.plan.buckets()[index].parameters,
            );
            let is_finite = bucket.largest.1.is_finite();
            state.next += 1;
            let context = state.context;
            state.send(Job::Bucket {
                context,
                index,
                values,
                is_finite,
            });
        }
    }
}

/// Replaces each sum by a function of the sum and a gradient. Returns the bits of the largest
/// magnitude.
fn update(sums: &mut [f32], gradient: &[f32], new_sum: impl Fn(f32, f32) -> f32) -> u32 {
    let values = sums.iter_mut().zip(gradient).map(|(sum, &value)| {
        *sum = new_sum(*sum, value);
        magnitude_bits(*sum)
    });
    values.max().unwrap_or(0)
}

/// Returns the parameter with the largest magnitude among `parameters`, and the magnitude.
/// `magnitudes` holds bits, slot by slot.
fn largest_of(magnitudes: &[u32], num_parameters: usize, parameters: &Range<usize>) -> (u32, f32) {
    let mut largest = (0, 0);
    for slot in magnitudes.chunks_exact(num_parameters) {
        for (entry, &bits) in parameters.clone().zip(&slot[parameters.clone()]) {
            if bits > largest.1 {
                largest = (entry as u32, bits);
            }
        }
    }
    (largest.0, f32::from_bits(largest.1))
}

fn by_id(layout: &ParameterLayout) -> HashMap<ParamId, usize> {
    let entries = layout.entries().iter().enumerate();
    entries.map(|(index, entry)| (entry.id, index)).collect()
}
