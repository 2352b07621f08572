//! The evaluations of a run: of the val split, or the test split without one, in the epochs; of the test split at the end.
//!
//! In: a run under way. Out: scores, `evaluation.json`. Invariant: in a run with a val split the test split is measured once, with the best
//! model.

use std::sync::Arc;

use anyhow::Result;
use datasets::ImageDataset;
use distributed::watchdog::Phase;
use records::{EvaluationByClass, FinalTest};

use super::Training;
use crate::measure::gather::found_by_root;
use crate::model::ImageClassifier;
use crate::run::evaluate::{EvaluateConfig, Evaluation, by_class, evaluate};
use crate::run::session::Session;

impl<M: ImageClassifier> Training<'_, M> {
    /// Saves an epoch whose evaluation ended on all ranks with this error, which is returned with what became of the epoch.
    pub(super) fn keep_unevaluated(&mut self, error: anyhow::Error) -> Result<anyhow::Error> {
        self.save()?;
        self.checkpointer.finish()?;
        // A rank that leaves with the error ends the job, so none does before root has written.
        self.session.communicator.barrier()?;
        let epoch = self.progress.epoch;
        Ok(error.context(format!(
            "epoch {epoch:02} is trained and saved, and a resumed run begins with its evaluation"
        )))
    }

    /// Whether all epochs are trained, or no better evaluation came in time.
    pub(super) fn has_ended(&self) -> bool {
        let Session {
            config, best_rule, ..
        } = self.session;
        self.progress.epoch >= config.schedule.epochs || best_rule.is_exhausted(&self.progress)
    }

    pub(super) fn evaluate_if_due(&mut self) -> Result<Option<Evaluation>> {
        let Session { config, data, .. } = self.session;
        let num_epochs = self.progress.epoch + 1;
        if num_epochs != config.schedule.epochs
            && !num_epochs.is_multiple_of(config.run.eval_every_epochs)
        {
            return Ok(None);
        }
        let Some(split) = data.evaluated() else {
            return Ok(None);
        };
        self.progress_file.enter("evaluation");
        let averaged = self.averaged();
        self.evaluate(averaged.as_ref().unwrap_or(self.stepper.model()), split)
            .map(Some)
    }

    /// The model with the average of the parameters, where one is kept.
    pub(super) fn averaged(&self) -> Option<M> {
        self.ema
            .as_ref()
            .map(|ema| ema.place(self.stepper.model().clone()))
    }

    fn evaluate(&self, model: &M, split: &Arc<dyn ImageDataset>) -> Result<Evaluation> {
        let Session {
            config,
            data,
            communicator,
            device,
            stop,
            reporter,
            ..
        } = self.session;
        let how = EvaluateConfig {
            micro_batch_size: config.micro_batch_size(),
            loader_threads: config.data.loader_threads,
            input: config.compute.input,
            loss: Arc::clone(&self.session.loss),
            metrics: self.session.metrics.clone(),
            reporter: (*reporter).clone(),
        };
        let _evaluation = self.times.timer.enter(Phase::Evaluation);
        evaluate(
            model,
            split,
            &data.normalization,
            &how,
            &**communicator,
            device,
            stop,
        )
    }

    /// Writes `evaluation.json`, on root.
    /// Collective: all ranks.
    pub(super) fn write_by_class(
        &self,
        evaluation: &Evaluation,
        split: &str,
        epoch: u64,
    ) -> Result<()> {
        let Session {
            data,
            communicator,
            files,
            reporter,
            ..
        } = self.session;
        let answers = evaluation.answers(&**communicator)?;
        let dataset = if split == "test" {
            &data.test
        } else {
            &data.val
        };
        if let (Some(dataset), Some(scores)) = (dataset, evaluation.scores()) {
            let names = data.train.class_names();
            let written = files
                .evaluation(|| by_class((split, Some(epoch)), &**dataset, scores, names, &answers));
            written.iter().for_each(|warning| reporter.warn(warning));
        }
        Ok(())
    }

    /// Measures the test split with the best model, once, in a run with a val split; returns false if a stop broke it off. A result of
    /// the same model and images that an earlier session has written is taken over.
    /// Collective: all ranks.
    pub(super) fn measure_test(&mut self) -> Result<bool> {
        let Session {
            data,
            communicator,
            files,
            reporter,
            ..
        } = self.session;
        let (Some(_), Some(test)) = (&data.val, &data.test) else {
            return Ok(true);
        };
        // The best checkpoint may still be on its way to the disk.
        self.checkpointer.finish()?;
        let best = self.progress.best.as_ref().map(|best| best.epoch);
        let is_it = |earlier: &EvaluationByClass| {
            let model = best.is_some() && earlier.epoch == best;
            model && earlier.split == "test" && earlier.dataset_checksum == test.checksum()
        };
        self.test = found_by_root(&**communicator, || {
            let earlier = files.read_evaluation().filter(is_it);
            Ok(earlier.and_then(|earlier| {
                Some(FinalTest {
                    epoch: earlier.epoch?,
                    scores: earlier.scores,
                })
            }))
        })?;
        if self.test.is_some() {
            reporter.note(
                "the test split was measured with the best model before, and is not measured again",
            );
            return Ok(true);
        }
        self.progress_file.enter("test");
        let last = self
            .averaged()
            .unwrap_or_else(|| self.stepper.model().clone());
        let (model, epoch) = self.checkpointer.best_model(last, &self.progress)?;
        let evaluation = self.evaluate(&model, test).map_err(|error| {
            error.context("the run is trained and saved, but its test split was not measured; `--resume` measures it")
        })?;
        let Some(scores) = evaluation.scores() else {
            return Ok(false);
        };
        self.write_by_class(&evaluation, "test", epoch)?;
        self.test = Some(FinalTest { epoch, scores });
        Ok(true)
    }
}
