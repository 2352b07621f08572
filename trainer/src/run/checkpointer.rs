//! What a run leaves behind and begins from again: checkpoints, written by root for all ranks.
//!
//! In: a [`Stepper`] and its [`Progress`]. Out: checkpoints; a restored stepper.
//! Invariant: root decides which checkpoint is read and sends it; no other rank looks at the disk. Every rank's own norm
//! statistics are kept, and what compression has kept back on it, so that the same number of ranks goes on with the same bits; another
//! number takes the statistics' mean, and root the sum of what was kept back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn_resnet::{load_weights, safetensors_bytes};
use distributed::{
    Communicator, ROOT,
    reduction::ReductionState,
    replica::{
        ParameterLayout, average_norm_statistics, broadcast_module, bytes_to_floats, fingerprint,
        floats_to_bytes, read, write,
    },
};

use crate::measure::gather::{found_by_root, from_root, to_root};
use crate::model::ImageClassifier;
use crate::run::checkpoint::{
    Background, Checkpoint, CheckpointState, CheckpointStore, Progress, TrainingTensors,
};
use crate::run::output::OutputDirectory;
use crate::run::resumption::Resumption;
use crate::run::session::Session;
use crate::step::Stepper;
use crate::step::ema::Ema;
use crate::step::optimizer::OptimizerState;

/// Of messages with a rank's residual.
const RESIDUAL_TAG: u16 = 104;

/// Saves and resumes one session's run; root holds the store.
#[derive(Debug)]
pub struct Checkpointer<'a> {
    session: &'a Session<'a>,
    store: Option<CheckpointStore>,
    /// The checkpoint that is being written while training goes on, and what is said of it then.
    writing: Background<String>,
}

impl<'a> Checkpointer<'a> {
    /// A checkpointer that writes below the session's output directory.
    pub fn new(session: &'a Session<'a>) -> Self {
        let store = |directory: &OutputDirectory| {
            CheckpointStore::new(
                &directory.checkpoints(),
                session.config.run.keep_checkpoints,
            )
        };
        Self {
            session,
            store: session.files.directory().map(store),
            writing: Background::default(),
        }
    }

    /// Saves the run as it stands: the model to be used, which has the average's parameters where there is one, and what training goes
    /// on from. Each epoch's sums in `progress` must be global.
    /// Collective: all ranks.
    ///
    /// Root copies what it writes, and writes it beside training; the next call waits for that, and so does [`finish`](Self::finish).
    /// With compression, where every rank sends as much as a model, it writes before it returns.
    ///
    /// # Errors
    /// When root cannot write this checkpoint or could not write the one before, or a collective fails.
    pub fn save<M: ImageClassifier>(
        &mut self,
        stepper: &Stepper<M>,
        ema: Option<&Ema>,
        progress: &Progress,
    ) -> Result<()> {
        let (start, step) = (Instant::now(), progress.step);
        let communicator = &*self.session.communicator;
        // A detached copy: its norm statistics are settled and may be averaged without touching those in training.
        let model = stepper.model().valid();
        let norm_statistics = statistics_of_all(&model, communicator)?;
        let model = average_norm_statistics(model, communicator)?;
        let reduction = stepper.reduction_state();
        self.finish()?;
        let Some(store) = self.store.clone() else {
            let send = |own: &ReductionState| {
                communicator.send(ROOT, RESIDUAL_TAG, &floats_to_bytes(&own.residual))
            };
            return Ok(reduction.as_ref().map_or(Ok(()), send)?);
        };
        self.session.files.expect_in_place()?;
        let num_residuals = if reduction.is_some() {
            communicator.world_size()
        } else {
            0
        };
        let ReductionState {
            residual,
            factors,
            num_drawn,
        } = reduction.unwrap_or_default();
        let tensors = TrainingTensors {
            optimizer: stepper.optimizer_state(),
            norm_statistics,
            factors,
            num_drawn,
            parameters: ema.map_or(Vec::new(), |_| stepper.parameters().into_owned()),
        };
        let state = CheckpointState::new(
            progress.clone(),
            stepper.loss_scale(),
            communicator.world_size(),
            fingerprint(&model).to_string(),
            self.session.data,
            serde_json::to_value(self.session.config.clone().with_absolute_paths())?,
        );
        let model = ema.map_or_else(|| model.clone(), |ema| ema.place(model.clone()));
        let bytes = safetensors_bytes(&model)?;
        let write_model = move |path: &Path| {
            fs::write(path, &bytes).with_context(|| format!("write {}", path.display()))
        };
        let note = move |directory: PathBuf| {
            let seconds = start.elapsed().as_secs_f64();
            format!(
                "checkpoint {} ({step} steps) written in {seconds:.2} s",
                directory.display()
            )
        };
        if num_residuals == 0 {
            self.writing
                .start(move || store.save(state, &tensors, None, write_model).map(note));
            return Ok(());
        }
        // One after the other: all of them together are as many models as there are ranks.
        let residuals = (0..num_residuals).map(|rank| match rank {
            ROOT => Ok(residual.clone()),
            rank => self.receive_residual(rank, residual.len()),
        });
        let written = note(store.save(state, &tensors, residuals, write_model)?);
        self.session.reporter.note(&written);
        Ok(())
    }

    /// Says what became of a checkpoint that has been written since; to be called now and then.
    pub fn look(&mut self) -> Result<()> {
        let written = self.writing.ended()?;
        written
            .iter()
            .for_each(|note| self.session.reporter.note(note));
        Ok(())
    }

    /// Waits for the checkpoint that is being written.
    pub fn finish(&mut self) -> Result<()> {
        let written = self.writing.wait()?;
        written
            .iter()
            .for_each(|note| self.session.reporter.note(note));
        Ok(())
    }

    /// The model of the best evaluation, as saved, and its epoch; `model`, which is as trained last, where there is no evaluation or
    /// no such checkpoint, with a warning in the second case.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When a collective fails.
    pub fn best_model<M: ImageClassifier>(
        &self,
        model: M,
        progress: &Progress,
    ) -> Result<(M, u64)> {
        let communicator = &*self.session.communicator;
        let last = progress.epoch.saturating_sub(1);
        let Some(best) = progress
            .best
            .as_ref()
            .map(|best| best.epoch)
            .filter(|best| *best != last)
        else {
            return Ok((model, last));
        };
        let read = |store: &CheckpointStore| -> Result<M> {
            let found = store.best()?.context("there is no such checkpoint")?;
            let epoch = found.state.progress.best.as_ref().map(|best| best.epoch);
            ensure!(
                epoch == Some(best),
                "the best checkpoint is of another epoch (expected {best}, got {epoch:?})"
            );
            Ok(load_weights(model.clone(), found.model_path())?)
        };
        let read = self.store.as_ref().map(read).transpose();
        let found = found_by_root(communicator, || {
            Ok(match &read {
                Ok(Some(_)) => None,
                Ok(None) => Some("the run has no output directory".to_owned()),
                Err(error) => Some(format!("{error:#}")),
            })
        })?;
        if let Some(reason) = found {
            self.session.reporter.warn(&format!(
                "the model of epoch {best:02}, the best, cannot be read: {reason}; that of epoch {last:02}, the last, is tested"
            ));
            return Ok((model, last));
        }
        let of_root = read.ok().flatten().unwrap_or(model);
        Ok((broadcast_module(of_root, communicator, ROOT)?, best))
    }

    /// Puts the stepper, and the average if one is kept, where the session's [`Resumption`] stands; without one the run starts anew.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When the checkpoint is not of this model, or cannot be read.
    pub fn resume<M: ImageClassifier>(
        &self,
        stepper: &mut Stepper<M>,
        ema: Option<&mut Ema>,
    ) -> Result<Progress> {
        let communicator = &*self.session.communicator;
        let mut model = stepper.model().clone();
        let mut state_json = Vec::new();
        let mut tensors = TrainingTensors::default();
        let mut found = None;
        let resumption = self.session.resumption.as_ref();
        if let (
            Some(store),
            Some(Resumption {
                checkpoint,
                damaged,
                ..
            }),
        ) = (&self.store, resumption)
        {
            model = load_weights(model, checkpoint.model_path())?;
            tensors = checkpoint.training_tensors()?;
            state_json = serde_json::to_vec(&checkpoint.state)?;
            for warning in store.set_aside(damaged)? {
                self.session.reporter.warn(&warning);
            }
            found = Some(checkpoint);
        }
        let from_root = |bytes: Vec<u8>| from_root(communicator, &bytes);
        let state_json = from_root(state_json)?;
        if state_json.is_empty() {
            self.session
                .reporter
                .note("resume: no checkpoint yet, the run starts at its beginning");
            return Ok(Progress::default());
        }
        let state: CheckpointState =
            serde_json::from_slice(&state_json).context("checkpoint state from root")?;
        let optimizer =
            self.optimizer_state(tensors.optimizer.clone(), &stepper.optimizer_state())?;
        let statistics = bytes_to_floats(&from_root(floats_to_bytes(
            &tensors.norm_statistics.concat(),
        ))?);
        model = broadcast_module(model, communicator, ROOT)?;
        if let Some(ema) = ema {
            ema.restore(&model);
            model = self.in_training(model, &tensors)?;
        }
        if state.world_size == communicator.world_size() {
            model = with_own_statistics(model, &statistics, communicator)?;
        }
        stepper.restore(model, &optimizer, Some(state.loss_scale))?;
        if let Some(fresh) = stepper.reduction_state() {
            let factors = bytes_to_floats(&from_root(floats_to_bytes(&tensors.factors))?);
            let num_drawn =
                serde_json::from_slice(&from_root(serde_json::to_vec(&tensors.num_drawn)?)?)?;
            ensure!(
                factors.is_empty() || factors.len() == fresh.factors.len(),
                "resume: factors of compression: expected {}, got {}; take another checkpoint",
                fresh.factors.len(),
                factors.len()
            );
            let residual = self.own_residual(found, &state, fresh.residual.len())?;
            stepper.restore_reduction(
                state.progress.step,
                &ReductionState {
                    residual,
                    factors,
                    num_drawn,
                },
            );
        }
        self.session.reporter.note(&format!(
            "resumed at epoch {} step {} (written by {} ranks)",
            state.progress.epoch, state.progress.step, state.world_size
        ));
        resumption
            .iter()
            .for_each(|resumption| resumption.tell(self.session.reporter));
        Ok(state.progress)
    }

    /// The optimizer's state `saved` on root, which must be of the kind of `fresh`.
    /// Collective: all ranks.
    fn optimizer_state(
        &self,
        saved: OptimizerState,
        fresh: &OptimizerState,
    ) -> Result<OptimizerState> {
        let from_root = |bytes: Vec<u8>| from_root(&*self.session.communicator, &bytes);
        let moments = bytes_to_floats(&from_root(floats_to_bytes(&saved.moments))?);
        let num_updates =
            serde_json::from_slice(&from_root(serde_json::to_vec(&saved.num_updates)?)?)?;
        let custom: Option<Vec<u8>> =
            serde_json::from_slice(&from_root(serde_json::to_vec(&saved.custom)?)?)?;
        let state = OptimizerState {
            moments,
            num_updates,
            custom,
        };
        let kind = |state: &OptimizerState| {
            (
                state.moments.len(),
                state.num_updates.is_some(),
                state.custom.is_some(),
            )
        };
        ensure!(
            kind(&state) == kind(fresh),
            "resume: state of the optimizer: expected {} values, got {} of another optimizer or model; take another checkpoint",
            fresh.moments.len(),
            state.moments.len()
        );
        Ok(state)
    }

    /// `model`, which has the average, with the parameters that training goes on with, from root.
    /// Collective: all ranks.
    fn in_training<M: ImageClassifier>(&self, model: M, tensors: &TrainingTensors) -> Result<M> {
        let layout = ParameterLayout::new(&model);
        let parameters = from_root(
            &*self.session.communicator,
            &floats_to_bytes(&tensors.parameters),
        )?;
        let parameters = bytes_to_floats(&parameters);
        ensure!(
            parameters.len() == layout.num_elements(),
            "resume: parameters beside their average: expected {}, got {}; take another checkpoint",
            layout.num_elements(),
            parameters.len()
        );
        Ok(write(model, &layout, &parameters))
    }

    /// This rank's part of what compression had kept back, from root, where the checkpoint is.
    /// Collective: all ranks.
    fn own_residual(
        &self,
        found: Option<&Checkpoint>,
        state: &CheckpointState,
        len: usize,
    ) -> Result<Vec<f32>> {
        let communicator = &*self.session.communicator;
        let world_size = communicator.world_size();
        ensure!(
            state.has_residuals(),
            "resume: expected a checkpoint with the residuals of compression, got none. Use another checkpoint"
        );
        let have_their_own = state.world_size == world_size;
        let Some(checkpoint) = found else {
            return if have_their_own {
                self.receive_residual(ROOT, len)
            } else {
                Ok(vec![0.0; len])
            };
        };
        for rank in (1..world_size).filter(|_| have_their_own) {
            let residual = checkpoint.residual(rank, world_size, len)?;
            communicator.send(rank, RESIDUAL_TAG, &floats_to_bytes(&residual))?;
        }
        checkpoint.residual(ROOT, world_size, len)
    }

    fn receive_residual(&self, from: usize, len: usize) -> Result<Vec<f32>> {
        let mut bytes = vec![0; len * size_of::<f32>()];
        self.session
            .communicator
            .receive(from, RESIDUAL_TAG, &mut bytes)?;
        Ok(bytes_to_floats(&bytes))
    }
}

/// The norm statistics of every rank, on root.
/// Collective: all ranks.
fn statistics_of_all<M: ImageClassifier>(
    model: &M,
    communicator: &dyn Communicator,
) -> Result<Vec<Vec<f32>>> {
    let own = read(model, &ParameterLayout::statistics(model));
    let mut all = Vec::new();
    to_root(communicator, floats_to_bytes(&own), |_, bytes| {
        all.push(bytes_to_floats(&bytes));
        Ok(())
    })?;
    Ok(all)
}

/// The model with this rank's own norm statistics of those that as many ranks have saved.
///
/// # Errors
/// When they are not of this model, on all ranks.
fn with_own_statistics<M: ImageClassifier>(
    model: M,
    saved: &[f32],
    communicator: &dyn Communicator,
) -> Result<M> {
    let num_ranks = communicator.world_size();
    let layout = ParameterLayout::statistics(&model);
    let own = layout.num_elements();
    ensure!(
        saved.len() == own * num_ranks,
        "resume: norm statistics of {num_ranks} ranks: expected {} values, got {}; take another checkpoint",
        own * num_ranks,
        saved.len()
    );
    Ok(write(
        model,
        &layout,
        &saved[communicator.rank() * own..][..own],
    ))
}
