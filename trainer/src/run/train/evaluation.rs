//! The evaluations of a run: of the val split, or the test split without one, in the epochs; of the
//! test split at the end.
//!
//! In: a run under way. Out: scores, `evaluation.json`. Invariant: in a run with a val split the
//! test split is measured once, with the best model.

use std::sync::Arc;

use anyhow::{Result, ensure};
use datasets::ImageDataset;
use distributed::replica::check_fingerprint;
use distributed::watchdog::Phase;
use records::{EvaluationByClass, FinalTest, file};

use super::Training;
use crate::measure::gather::found_by_root;
use crate::model::ImageClassifier;
use crate::run::directory::EVALUATION;
use crate::run::evaluate::{EvaluateConfig, Evaluation, UnreadImage, by_class, evaluate};

impl<M: ImageClassifier> Training<'_, M> {
    /// Evaluates an epoch whose steps are done, writes its record, and saves a checkpoint if one is
    /// due. Returns true if the ranks agreed to stop.
    pub(super) fn end_epoch(&mut self) -> Result<bool> {
        let session = self.session;
        let communicator = &*session.communicator;
        check_fingerprint(self.stepper.model(), communicator, self.progress.epoch)?;
        let epoch = self.progress.epoch + 1;
        let run = &session.config.run;
        let is_evaluated =
            epoch == session.config.schedule.epochs || epoch.is_multiple_of(run.eval_every_epochs);
        let evaluation = match session.data.evaluated() {
            Some(split) if is_evaluated => {
                self.progress_file.enter("evaluation");
                let averaged = self.averaged();
                let model = averaged.as_ref().unwrap_or(self.stepper.model());
                match self.evaluate(model, split) {
                    Err(error) if error.is::<UnreadImage>() => {
                        self.save()?;
                        self.checkpointer.finish()?;
                        // A rank that returns the error ends the job, so all wait until root has
                        // written.
                        communicator.barrier()?;
                        return Err(error.context(format!(
                            "epoch {epoch}: saved, but the evaluation failed; `--resume` repeats the evaluation"
                        )));
                    }
                    evaluation => Some(evaluation?),
                }
            }
            _ => None,
        };
        let scores = evaluation.as_ref().and_then(Evaluation::scores);
        if evaluation.is_some() && scores.is_none() {
            // Interrupted. A resumed run begins with this evaluation.
            self.save()?;
            return Ok(true);
        }
        // The sums are global, so all ranks stop here together, before such a model is saved.
        ensure!(
            scores.as_ref().is_none_or(|scores| scores.loss.is_finite()),
            "epoch {epoch}: the {} loss is not finite (expected a number); lower the learning rate or clip the gradient",
            session.evaluated_split()
        );
        let is_best = match &scores {
            Some(scores) => session
                .best_rule
                .note(&mut self.progress, scores, communicator)?,
            None => false,
        };
        self.record(scores)?;
        if let Some(evaluation) = &evaluation
            && is_best
        {
            self.write_by_class(evaluation, session.evaluated_split(), self.progress.epoch)?;
        }
        self.progress.begin_next_epoch();
        let is_last = self.has_ended();
        let stopped = !is_last && evaluation.is_some_and(|evaluation| evaluation.stop);
        // One that is due by steps at the end of an epoch is saved here, with the whole epoch.
        let is_due = run
            .checkpoint_every_steps
            .is_some_and(|every| self.progress.step.is_multiple_of(every))
            || epoch.is_multiple_of(run.checkpoint_every_epochs);
        if is_best || is_last || stopped || is_due {
            self.save()?;
        }
        Ok(stopped)
    }

    /// Returns true if all epochs are trained, or `--patience` ends the run.
    pub(super) fn has_ended(&self) -> bool {
        self.progress.epoch >= self.session.config.schedule.epochs
            || self.session.best_rule.is_exhausted(&self.progress)
    }

    /// Returns the model with the average of the parameters, if one is kept.
    fn averaged(&self) -> Option<M> {
        let ema = self.ema.as_ref()?;
        Some(ema.place(self.stepper.model().clone()))
    }

    fn evaluate(&self, model: &M, split: &Arc<dyn ImageDataset>) -> Result<Evaluation> {
        let session = self.session;
        let config = session.config;
        let how = EvaluateConfig {
            micro_batch_size: config.micro_batch_size(),
            loader_threads: config.data.loader_threads,
            input: config.compute.input,
            loss: Arc::clone(&session.loss),
            metrics: session.metrics.clone(),
            reporter: session.reporter.clone(),
        };
        let _evaluation = self.times.timer.enter(Phase::Evaluation);
        evaluate(
            model,
            split,
            &session.data.normalization,
            &how,
            &*session.communicator,
            session.device,
            session.stop,
        )
    }

    /// Writes `evaluation.json`, on root. If it cannot be written, the run continues.
    /// Collective: all ranks.
    pub(super) fn write_by_class(
        &self,
        evaluation: &Evaluation,
        split: &str,
        epoch: u64,
    ) -> Result<()> {
        let session = self.session;
        let data = session.data;
        let answers = evaluation.answers(&*session.communicator)?;
        let dataset = if split == "test" {
            &data.test
        } else {
            &data.val
        };
        if let (Some(directory), Some(dataset), Some(scores)) =
            (session.directory, dataset, evaluation.scores())
        {
            let names = data.train.class_names();
            let record = by_class((split, Some(epoch)), &**dataset, scores, names, &answers);
            // On one line: a confusion matrix would otherwise have a line for each number.
            let text = serde_json::to_vec(&record)?;
            if let Err(error) = file::replace(&directory.file(EVALUATION), &text) {
                session.reporter.warn(&format!(
                    "{error:#}. The run continues; the file lacks this evaluation"
                ));
            }
        }
        Ok(())
    }

    /// Measures the test split with the best model, once, in a run with a val split. If an earlier
    /// session has measured the same model and images, its result is used. Returns false if a stop
    /// interrupted the test.
    /// Collective: all ranks.
    pub(super) fn measure_test(&mut self) -> Result<bool> {
        let session = self.session;
        let (Some(_), Some(test)) = (&session.data.val, &session.data.test) else {
            return Ok(true);
        };
        // The best checkpoint may still be on its way to the disk.
        self.checkpointer.finish()?;
        let best = self.progress.best.as_ref().map(|best| best.epoch);
        self.test = found_by_root(&*session.communicator, || {
            let earlier: Option<EvaluationByClass> = session
                .directory
                .and_then(|directory| directory.read(EVALUATION));
            Ok(earlier.and_then(|earlier| {
                let epoch = earlier.epoch?;
                let is_same = Some(epoch) == best
                    && earlier.split == "test"
                    && earlier.dataset_checksum == test.checksum();
                let scores = earlier.scores;
                is_same.then_some(FinalTest { epoch, scores })
            }))
        })?;
        if self.test.is_some() {
            session.reporter.note(
                "an earlier session ran the final test with the best model; it is not repeated",
            );
            return Ok(true);
        }
        self.progress_file.enter("test");
        let last = self
            .averaged()
            .unwrap_or_else(|| self.stepper.model().clone());
        let (model, epoch) = self.checkpointer.best_model(last, &self.progress)?;
        let evaluation = self.evaluate(&model, test).map_err(|error| {
            error.context(
                "the run is trained and saved, but the final test failed; `--resume` repeats it",
            )
        })?;
        let Some(scores) = evaluation.scores() else {
            return Ok(false);
        };
        self.write_by_class(&evaluation, "test", epoch)?;
        self.test = Some(FinalTest { epoch, scores });
        Ok(true)
    }
}
