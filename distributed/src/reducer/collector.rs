//! Gradients on their way into buckets.
//!
//! In: gradients, one parameter at a time, from any thread. Out: full buckets, in bucket order.
//! Invariant: a bucket leaves once a step, after the last micro-step gave all its parameters.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::module::ParamId;

use super::engine::{Job, JobSender};
use super::synced::{LocalBucket, squares};
use crate::header::{are_finite, largest_magnitude_bits};
use crate::{gradients::BucketPlan, reduction::BucketContext, replica::ParameterLayout};

/// Where the backward pass puts gradients; shared by a reducer and the hooks of a model.
#[derive(Debug)]
pub struct GradientCollector {
    layout: ParameterLayout,
    plan: BucketPlan,
    /// Of every parameter of the layout.
    bucket_of: Vec<usize>,
    num_slots: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// burn's id of every parameter in this process.
    ids: Vec<ParamId>,
    /// Index in the layout by id.
    entries: HashMap<ParamId, usize>,
    /// Whether a hook has given a gradient of this micro-step, of any parameter.
    has_taken: bool,
    /// Of every parameter: whether a micro-step has had its gradient since the reducer was made.
    was_used: Vec<bool>,
    /// Of every bucket; empty while it travels.
    buffers: Vec<Vec<f32>>,
    /// Of every parameter: whether this micro-step has its gradient.
    has_arrived: Vec<bool>,
    /// Of every parameter: when its last gradient came.
    arrivals: Vec<Option<Instant>>,
    /// Of every bucket: parameters without a gradient in this micro-step.
    num_missing: Vec<usize>,
    context: BucketContext,
    micro_step: MicroStepConfig,
    /// Of every slot: whether a micro-step of this step has written it.
    is_written: Vec<bool>,
    /// Whether the present micro-step is its slot's first, and overwrites what the last step left.
    overwrites: bool,
    /// The next bucket to leave.
    next: usize,
    job_sender: JobSender,
    /// Squared norms of this step's micro-steps so far, added up, where they are measured.
    squares: Option<f64>,
    /// Of every bucket that left: index in the layout, and magnitude, of its largest gradient.
    largest: Vec<(u32, f32)>,
}

/// What is done with the gradients of a micro-step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroStepConfig {
    /// They are multiplied by it.
    pub weight: f32,
    /// The accumulation slot that they are added to, below [`BucketReduction::num_slots`](crate::reduction::BucketReduction::num_slots).
    pub slot: usize,
    /// Whether none follows in this step: buckets leave as soon as they are full.
    pub is_last: bool,
    /// Whether they are dropped: those of a pass that only took part in collectives.
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
        job_sender: JobSender,
    ) -> Self {
        let mut bucket_of = vec![0; layout.entries().len()];
        for (index, bucket) in plan.buckets().iter().enumerate() {
            bucket_of[bucket.parameters.clone()].fill(index);
        }
        let buckets = plan.buckets();
        let state = State {
            ids: ids(&layout),
            entries: by_id(&layout),
            has_taken: false,
            was_used: vec![false; layout.entries().len()],
            buffers: buckets
                .iter()
                .map(|bucket| vec![0.0; num_slots * bucket.elements.len()])
                .collect(),
            has_arrived: vec![false; layout.entries().len()],
            arrivals: vec![None; layout.entries().len()],
            num_missing: buckets
                .iter()
                .map(|bucket| bucket.parameters.len())
                .collect(),
            context: BucketContext::default(),
            micro_step: MicroStepConfig::default(),
            is_written: vec![false; num_slots],
            overwrites: true,
            next: 0,
            job_sender,
            squares: None,
            largest: vec![(0, 0.0); buckets.len()],
        };
        Self {
            layout,
            plan,
            bucket_of,
            num_slots,
            state: Mutex::new(state),
        }
    }

    /// Takes one parameter's gradient of the pass in progress. Gradients of other modules are ignored. Parameters are known by their ids: those of
    /// the module that [`backward`](super::GradientReducer::backward) was given, or [`rename`](super::GradientReducer::rename).
    ///
    /// # Panics
    /// When the gradient has another length than the parameter, or is a second one of the same pass.
    pub fn take(&self, parameter: ParamId, gradient: &[f32]) {
        let mut state = self.lock();
        state.has_taken = true;
        if let Some(&entry) = state.entries.get(&parameter) {
            self.put(&mut state, entry, Some(gradient));
        }
    }

    /// The bucket of a parameter, and how many parameters that has; `None` for one that it does not know.
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

    /// Buckets that leave from now on are of this step.
    pub(super) fn begin_step(&self, context: BucketContext) {
        self.lock().context = context;
    }

    /// Sends the step's header ahead of its buckets.
    pub(super) fn send_header(&self, bytes: Vec<u8>) {
        self.lock().job_sender.send(Job::Header(bytes));
    }

    /// From now on each micro-step's squared norm is taken.
    pub(super) fn measure_parts(&self) {
        self.lock().squares = Some(0.0);
    }

    /// The squared norms since the last call, added up; 0 where they are not measured.
    pub(super) fn take_squares(&self) -> f64 {
        self.lock().squares.as_mut().map_or(0.0, mem::take)
    }

    /// Knows the parameters by the ids of this layout of the same module, rebuilt or loaded.
    pub(super) fn rename(&self, layout: &ParameterLayout) {
        let mut state = self.lock();
        (state.ids, state.entries) = (ids(layout), by_id(layout));
    }

    /// Returns true if these are the ids that parameters are known by.
    pub(super) fn knows(&self, ids: &[ParamId]) -> bool {
        self.lock().ids == ids
    }

    /// Returns true if a hook has given a gradient of this micro-step, of any parameter.
    pub(super) fn has_taken(&self) -> bool {
        self.lock().has_taken
    }

    /// Indices in the layout of parameters without a gradient in any micro-step so far; none before the first gradient.
    pub(super) fn unused(&self) -> Vec<usize> {
        let was_used = &self.lock().was_used;
        let is_known = was_used.contains(&true);
        (0..was_used.len())
            .filter(|&entry| is_known && !was_used[entry])
            .collect()
    }

    /// Opens the next micro-step of this step.
    pub(super) fn begin_micro_step(&self, how: MicroStepConfig) {
        assert!(
            how.slot < self.num_slots,
            "slot {}: expected below {}",
            how.slot,
            self.num_slots
        );
        let mut state = self.lock();
        state.micro_step = how;
        if !how.discard {
            state.overwrites = !mem::replace(&mut state.is_written[how.slot], true);
        }
        state.has_arrived.fill(false);
        for (missing, bucket) in state.num_missing.iter_mut().zip(self.plan.buckets()) {
            *missing = bucket.parameters.len();
        }
    }

    /// One gradient of the micro-step, by its index in the layout.
    pub(super) fn put_entry(&self, entry: usize, gradient: &[f32]) {
        self.put(&mut self.lock(), entry, Some(gradient));
    }

    /// Closes the micro-step: what has not arrived is zero.
    pub(super) fn end_micro_step(&self) {
        let mut state = self.lock();
        state.has_taken = false;
        for entry in (0..self.bucket_of.len()).rev() {
            if !state.has_arrived[entry] {
                self.put(&mut state, entry, None);
            }
        }
    }

    /// Closes the step, whatever was accumulated: the buckets that have not left do now.
    pub(super) fn complete(&self) {
        let mut state = self.lock();
        self.clear_unwritten(&mut state);
        state.num_missing.fill(0);
        self.release(&mut state);
    }

    /// Closes the step without letting a bucket leave; `use_buckets` learns whether all values are finite.
    pub(super) fn finish_local<T>(
        &self,
        use_buckets: impl FnOnce(&[LocalBucket<'_>], bool) -> T,
    ) -> T {
        let mut state = self.lock();
        self.clear_unwritten(&mut state);
        state.is_written.fill(false);
        let buckets = self.plan.buckets().iter().zip(&state.buffers);
        let buckets: Vec<_> = buckets
            .map(|(bucket, values)| LocalBucket {
                elements: bucket.elements.clone(),
                values,
            })
            .collect();
        use_buckets(
            &buckets,
            buckets.iter().all(|bucket| are_finite(bucket.values)),
        )
    }

    /// Takes a bucket's buffer back; with the last one the next step may begin.
    pub(super) fn give_back(&self, index: usize, mut buffer: Vec<f32>) {
        let mut state = self.lock();
        buffer.resize(
            self.num_slots * self.plan.buckets()[index].elements.len(),
            0.0,
        );
        state.buffers[index] = buffer;
        state.next -= 1;
        if state.next == 0 {
            state.is_written.fill(false);
        }
    }

    /// No bucket will be sent any more.
    pub(super) fn close(&self) {
        self.lock().job_sender.send(Job::End);
    }

    /// When each parameter of the layout got its last gradient, or learned that there is none.
    pub(super) fn arrivals(&self) -> Vec<Option<Instant>> {
        self.lock().arrivals.clone()
    }

    /// Index in the layout, and magnitude, of the largest gradient of a bucket when it left; NaN counts as largest.
    pub(super) fn largest(&self, bucket: usize) -> (u32, f32) {
        self.lock().largest[bucket]
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
        assert!(
            !mem::replace(&mut state.has_arrived[entry], true),
            "{}: a second gradient in one backward pass, expected one. Run each use of a module that is used twice in a PassContext whose \
             hook is None: its gradients are then taken after the pass",
            description.path
        );
        state.arrivals[entry] = Some(Instant::now());
        let elements = &self.plan.buckets()[bucket].elements;
        let start = slot * elements.len() + description.offset - elements.start;
        let sums = &mut state.buffers[bucket][start..start + description.len];
        match gradient {
            Some(gradient) => {
                state.was_used[entry] = true;
                if let Some(sum) = &mut state.squares {
                    *sum += f64::from(weight).powi(2) * squares(gradient);
                }
                assert_eq!(
                    gradient.len(),
                    sums.len(),
                    "{}: gradient and parameter differ in length",
                    description.path
                );
                match state.overwrites {
                    true => sums
                        .iter_mut()
                        .zip(gradient)
                        .for_each(|(sum, value)| *sum = weight * value),
                    false => sums
                        .iter_mut()
                        .zip(gradient)
                        .for_each(|(sum, value)| *sum += weight * value),
                }
            }
            None if state.overwrites => sums.fill(0.0),
            None => {}
        }
        state.num_missing[bucket] -= 1;
        if is_last {
            self.release(state);
        }
    }

    /// Slots without a sample are zero.
    fn clear_unwritten(&self, state: &mut State) {
        for slot in (0..self.num_slots).filter(|&slot| !state.is_written[slot]) {
            for (buffer, bucket) in state.buffers.iter_mut().zip(self.plan.buckets()) {
                let len = bucket.elements.len();
                buffer[slot * len..(slot + 1) * len].fill(0.0);
            }
        }
    }

    /// Lets full buckets leave, in order.
    fn release(&self, state: &mut State) {
        while state.next < state.num_missing.len() && state.num_missing[state.next] == 0 {
            let index = state.next;
            let values = mem::take(&mut state.buffers[index]);
            state.largest[index] = self.largest_of(index, &values);
            state.next += 1;
            let context = state.context;
            state.job_sender.send(Job::Bucket {
                context,
                index,
                values,
                ready: Instant::now(),
            });
        }
    }

    fn largest_of(&self, index: usize, values: &[f32]) -> (u32, f32) {
        let bucket = &self.plan.buckets()[index];
        let mut largest = (0, 0);
        for slot in values.chunks_exact(bucket.elements.len().max(1)) {
            for (entry, description) in bucket
                .parameters
                .clone()
                .zip(&self.layout.entries()[bucket.parameters.clone()])
            {
                let start = description.offset - bucket.elements.start;
                let bits = largest_magnitude_bits(&slot[start..start + description.len]);
                if bits > largest.1 {
                    largest = (entry as u32, bits);
                }
            }
        }
        (largest.0, f32::from_bits(largest.1))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that a pass panicked; the job ends with that panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ids(layout: &ParameterLayout) -> Vec<ParamId> {
    layout.entries().iter().map(|entry| entry.id).collect()
}

/// The index in the layout of every parameter's id.
fn by_id(layout: &ParameterLayout) -> HashMap<ParamId, usize> {
    layout
        .entries()
        .iter()
        .enumerate()
        .map(|(index, entry)| (entry.id, index))
        .collect()
}
