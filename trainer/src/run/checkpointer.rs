//! Saves and resumes a run: checkpoints that root writes and reads for all ranks.
//!
//! In: a [`Stepper`] and its [`Progress`]. Out: checkpoints; a restored state.
//! Invariant: root chooses the checkpoint and sends it; no other rank reads the disk. A checkpoint
//! has every rank's norm statistics and residual of compression, so the same number of ranks
//! continues with the same bits. On another number of ranks all take the mean of the statistics,
//! and root takes the sum of the residuals.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use burn_resnet::{load_weights, safetensors_bytes};
use datasets::threads;
use distributed::gradients::ReductionState;
use distributed::replica::{
    ParameterLayout, average_norm_statistics, broadcast_module, bytes_to_floats, fingerprint,
    floats_to_bytes, read, write,
};
use distributed::{Communicator, ROOT};

use crate::measure::gather::{found_by_root, from_root, to_root};
use crate::measure::report::Reporter;
use crate::run::checkpoint::{
    Checkpoint, CheckpointState, CheckpointStore, Damaged, FORMAT, Progress, TrainingTensors,
};
use crate::run::directory::{CHECKPOINTS, RunDirectory};
use crate::step::Stepper;
use crate::step::ema::Ema;

/// Tag of messages with a rank's residual.
const RESIDUAL_TAG: u16 = 104;

/// Returns the note on a written checkpoint.
type Writing = Box<dyn FnOnce() -> Result<String> + Send>;

/// Saves and resumes the run of one session; root has the store.
#[derive(Debug)]
pub struct Checkpointer {
    communicator: Arc<dyn Communicator>,
    reporter: Reporter,
    store: Option<CheckpointStore>,
    /// The thread that writes a checkpoint during training.
    writing: Option<JoinHandle<Result<String>>>,
}

impl Checkpointer {
    /// Returns a checkpointer that writes to `directory` and keeps the last `keep` checkpoints, and
    /// the best.
    pub fn new(
        communicator: Arc<dyn Communicator>,
        reporter: &Reporter,
        directory: Option<&RunDirectory>,
        keep: usize,
    ) -> Self {
        let store =
            |directory: &RunDirectory| CheckpointStore::new(&directory.file(CHECKPOINTS), keep);
        Self {
            communicator,
            reporter: reporter.clone(),
            store: directory.map(store),
            writing: None,
        }
    }

    /// Saves the run: the model to be used, which has the average's parameters if there is one, and
    /// what training continues from. The sums in `progress` must be global. Root calls `facts` if
    /// the run has a directory, for the configuration, the input and the checksums of the data.
    /// Collective: all ranks.
    ///
    /// Root copies the values and writes them during training; the next call and
    /// [`finish`](Self::finish) wait for that. With compression, where every rank sends as much as
    /// a model, root writes before it returns.
    ///
    /// # Errors
    /// If root cannot write this checkpoint or could not write the last one, if `facts` fails, or a
    /// collective fails.
    pub fn save<M: Module>(
        &mut self,
        stepper: &Stepper<M>,
        ema: Option<&Ema>,
        progress: &Progress,
        facts: impl FnOnce() -> Result<CheckpointState>,
    ) -> Result<()> {
        let start = Instant::now();
        let step = progress.step;
        let communicator = Arc::clone(&self.communicator);
        let communicator = &*communicator;
        // A detached copy, whose norm statistics may be averaged without changing those in
        // training.
        let model = stepper.model().valid();
        let own = read(&model, &ParameterLayout::statistics(&model));
        let mut norm_statistics = Vec::new();
        to_root(communicator, floats_to_bytes(&own), |_, bytes| {
            norm_statistics.push(bytes_to_floats(&bytes));
            Ok(())
        })?;
        let model = average_norm_statistics(model, communicator)?;
        let reduction = stepper.reduction_state();
        self.finish()?;
        let Some(store) = self.store.clone() else {
            if let Some(own) = reduction {
                communicator.send(ROOT, RESIDUAL_TAG, &floats_to_bytes(&own.residual))?;
            }
            return Ok(());
        };
        let facts = facts()?;
        let is_compressed = reduction.is_some();
        let reduction = reduction.unwrap_or_default();
        let tensors = TrainingTensors {
            optimizer: stepper.optimizer_state(),
            norm_statistics,
            factors: reduction.factors,
            num_drawn: reduction.num_drawn,
            parameters: ema.map_or(Vec::new(), |_| stepper.parameters().into_owned()),
        };
        let state = CheckpointState {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            progress: progress.clone(),
            world_size: communicator.world_size(),
            parameter_hash: fingerprint(&model).to_string(),
            loss_scale: stepper.loss_scale(),
            ..facts
        };
        let model = match ema {
            Some(ema) => safetensors_bytes(&ema.place(model))?,
            None => safetensors_bytes(&model)?,
        };
        let note = move |directory: std::path::PathBuf| {
            let seconds = start.elapsed().as_secs_f64();
            let directory = directory.display();
            format!("checkpoint {directory} ({step} steps) written in {seconds:.2} s")
        };
        if is_compressed {
            // One after the other: together they are as many models as there are ranks.
            let residuals = (0..communicator.world_size()).map(|rank| match rank {
                ROOT => Ok(reduction.residual.clone()),
                rank => self.receive_residual(rank, reduction.residual.len()),
            });
            let written = store.save(state, &tensors, residuals, &model)?;
            self.reporter.detail(&note(written));
            return Ok(());
        }
        let write: Writing = Box::new(move || store.save(state, &tensors, None, &model).map(note));
        match threads::start("checkpoint", write, |write| write()) {
            Ok(thread) => self.writing = Some(thread),
            // The operating system refused a thread.
            Err(write) => self.reporter.detail(&write()?),
        }
        Ok(())
    }

    /// Reports a checkpoint that has been written since the last call, if the run is verbose.
    pub fn look(&mut self) -> Result<()> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish()?;
        }
        Ok(())
    }

    /// Waits for the checkpoint that is being written.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(thread) = self.writing.take() {
            let written = thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            self.reporter.detail(&written);
        }
        Ok(())
    }

    /// Returns the saved model of the best evaluation, and its epoch. Without an evaluation it is
    /// the `model` that was trained last; so it is if the checkpoint cannot be read, with a
    /// warning.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn best_model<M: Module>(&self, model: M, progress: &Progress) -> Result<(M, u64)> {
        let communicator = &*self.communicator;
        let last = progress.epoch.saturating_sub(1);
        let best = match &progress.best {
            Some(best) if best.epoch != last => best.epoch,
            _ => return Ok((model, last)),
        };
        let read = |store: &CheckpointStore| -> Result<M> {
            let found = store.best()?.context("there is no such checkpoint")?;
            let epoch = found.state.progress.best.as_ref().map(|best| best.epoch);
            ensure!(
                epoch == Some(best),
                "the best checkpoint is that of another epoch"
            );
            Ok(load_weights(model.clone(), found.model_path())?)
        };
        let read = self.store.as_ref().map(read).transpose();
        let failure = found_by_root(communicator, || {
            Ok(match &read {
                Ok(Some(_)) => None,
                Ok(None) => Some("the run has no output directory".to_owned()),
                Err(error) => Some(format!("{error:#}")),
            })
        })?;
        if let Some(reason) = failure {
            self.reporter.warn(&format!(
                "the model of epoch {}, the best, cannot be read: {reason}. The model of epoch {}, the last, is tested instead",
                best + 1,
                last + 1
            ));
            return Ok((model, last));
        }
        let of_root = read.ok().flatten().unwrap_or(model);
        Ok((broadcast_module(of_root, communicator, ROOT)?, best))
    }

    /// Restores the stepper, and the average if one is kept, from a checkpoint that root has found,
    /// together with newer ones that are not whole. Returns the state of the checkpoint; `None`
    /// without one: the run starts at its beginning.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If the checkpoint is not one of this model, or cannot be read.
    pub fn resume<M: Module>(
        &self,
        stepper: &mut Stepper<M>,
        ema: Option<&mut Ema>,
        found: Option<(&Checkpoint, &[Damaged])>,
    ) -> Result<Option<CheckpointState>> {
        let reporter = &self.reporter;
        let communicator = &*self.communicator;
        let mut model = stepper.model().clone();
        let mut state = Vec::new();
        let mut tensors = Vec::new();
        if let (Some(store), Some((checkpoint, damaged))) = (&self.store, found) {
            model = load_weights(model, checkpoint.model_path())?;
            tensors = checkpoint.training_bytes()?;
            state = serde_json::to_vec(&checkpoint.state)?;
            for warning in store.set_aside(damaged)? {
                reporter.warn(&warning);
            }
        }
        let state = from_root(communicator, &state)?;
        if state.is_empty() {
            reporter.note("resume: no checkpoint yet, so the run starts at its beginning");
            return Ok(None);
        }
        let state: CheckpointState =
            serde_json::from_slice(&state).context("checkpoint state from root")?;
        let tensors = from_root(communicator, &tensors)?;
        let tensors = TrainingTensors::from_bytes(&tensors, state.world_size)
            .context("resume: training tensors of the checkpoint")?;
        let fresh = stepper.optimizer_state();
        ensure!(
            tensors.optimizer.moments.len() == fresh.moments.len()
                && tensors.optimizer.num_updates.is_some() == fresh.num_updates.is_some()
                && tensors.optimizer.custom.is_some() == fresh.custom.is_some(),
            "resume: state of the optimizer: expected {} values, got {} of another optimizer or model; take another checkpoint",
            fresh.moments.len(),
            tensors.optimizer.moments.len()
        );
        model = broadcast_module(model, communicator, ROOT)?;
        if let Some(ema) = ema {
            ema.restore(&model);
            let layout = ParameterLayout::new(&model);
            let what = "parameters in training";
            model = with_values(model, &layout, &tensors.parameters, what)?;
        }
        if state.world_size == communicator.world_size() {
            let own = &tensors.norm_statistics[communicator.rank()];
            let layout = ParameterLayout::statistics(&model);
            model = with_values(model, &layout, own, "norm statistics of a rank")?;
        }
        stepper.restore(model, &tensors.optimizer, Some(state.loss_scale))?;
        if let Some(fresh) = stepper.reduction_state() {
            ensure!(
                tensors.factors.is_empty() || tensors.factors.len() == fresh.factors.len(),
                "resume: factors of compression: expected {}, got {}; take another checkpoint",
                fresh.factors.len(),
                tensors.factors.len()
            );
            let checkpoint = found.map(|(checkpoint, _)| checkpoint);
            let reduction = ReductionState {
                residual: self.own_residual(checkpoint, &state, fresh.residual.len())?,
                factors: tensors.factors,
                num_drawn: tensors.num_drawn,
            };
            stepper.restore_reduction(state.progress.step, &reduction);
        }
        Ok(Some(state))
    }

    /// Returns this rank's residual of compression, from root.
    /// Collective: all ranks.
    fn own_residual(
        &self,
        found: Option<&Checkpoint>,
        state: &CheckpointState,
        len: usize,
    ) -> Result<Vec<f32>> {
        let communicator = &*self.communicator;
        let world_size = communicator.world_size();
        ensure!(
            state.has_residuals(),
            "resume: expected a checkpoint with the residuals of compression, got none. Use another checkpoint"
        );
        let Some(checkpoint) = found else {
            return self.receive_residual(ROOT, len);
        };
        for rank in 1..world_size {
            let residual = checkpoint.residual(rank, world_size, len)?;
            communicator.send(rank, RESIDUAL_TAG, &floats_to_bytes(&residual))?;
        }
        checkpoint.residual(ROOT, world_size, len)
    }

    fn receive_residual(&self, from: usize, len: usize) -> Result<Vec<f32>> {
        let mut bytes = vec![0; len * size_of::<f32>()];
        self.communicator.receive(from, RESIDUAL_TAG, &mut bytes)?;
        Ok(bytes_to_floats(&bytes))
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        if let Some(thread) = self.writing.take() {
            // An error is being returned already.
            let _ = thread.join();
        }
    }
}

/// Returns the model with these values of `layout`; an error names `what` they are.
fn with_values<M: Module>(
    model: M,
    layout: &ParameterLayout,
    values: &[f32],
    what: &str,
) -> Result<M> {
    ensure!(
        values.len() == layout.num_elements(),
        "resume: {what}: expected {} values, got {}; take another checkpoint",
        layout.num_elements(),
        values.len()
    );
    Ok(write(model, layout, values))
}
