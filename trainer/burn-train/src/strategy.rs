//! The training loop of one rank.
//!
//! In: burn's components of a training. Out: the trained model, the same bits on every rank.
//! Invariant: every rank makes the same sequence of collectives, also a rank that stops or whose
//! slice has fewer batches.

use std::sync::Arc;

use anyhow::{Error, Result, bail};
use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::tensor::Device;
use burn_train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainOutput,
    TrainStep, TrainingComponents, TrainingItem, ValidLoader,
};
use distributed::gradients::{GradientReducer, MicroStepConfig, ReducerConfig};
use distributed::replica::{average_norm_statistics, broadcast_module, check_fingerprint};
use distributed::{Communicator, ROOT};
use layers::PassContext;
use layers::backend::gradient_hook;

pub(super) struct DataParallel {
    communicator: Arc<dyn Communicator>,
    device: Device,
}

impl DataParallel {
    pub(super) fn new(communicator: Arc<dyn Communicator>, device: Device) -> Self {
        Self {
            communicator,
            device,
        }
    }

    /// Returns this rank's slice of the items.
    fn slice<M: LearnerModel>(&self, loader: &TrainLoader<M>) -> TrainLoader<M> {
        let rank = self.communicator.rank();
        let world_size = self.communicator.world_size();
        if world_size == 1 {
            return Arc::clone(loader);
        }
        let start = |rank: usize| rank * loader.num_items() / world_size;
        loader.slice(start(rank), start(rank + 1))
    }

    /// Panics: `fit` of burn returns no error, and a panic of one rank ends all of them.
    fn fail(&self, error: &Error) -> ! {
        panic!("rank {}: {error:#}", self.communicator.rank())
    }

    /// Compares `own` over all ranks: unlike ranks would wait for each other.
    fn check_equal(&self, what: &str, own: &str) -> Result<()> {
        let all = self.communicator.all_gather(own.as_bytes())?;
        match all.iter().position(|other| *other != all[ROOT]) {
            None => Ok(()),
            Some(rank) => {
                let [expected, got] =
                    [ROOT, rank].map(|rank| String::from_utf8_lossy(&all[rank]).into_owned());
                bail!(
                    "{what}: expected {expected} as on rank {ROOT}, got {got} (rank {rank}); give every rank the same training"
                )
            }
        }
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for DataParallel {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let mut replica = Replica::new(self, components, learner, &train, &valid, starting_epoch)
            .unwrap_or_else(|error| self.fail(&error));
        replica
            .run(starting_epoch)
            .unwrap_or_else(|error| self.fail(&error));
        (replica.learner.model(), replica.components.event_processor)
    }
}

/// Sent in place of a count by a rank that stops.
const STOP: u64 = u64::MAX;

/// One rank of a running training.
struct Replica<'a, M: LearnerModel> {
    communicator: &'a dyn Communicator,
    components: TrainingComponents<M>,
    learner: Learner<M>,
    reducer: GradientReducer,
    context: PassContext,
    /// This rank's slice.
    train: TrainLoader<M>,
    num_items: usize,
    valid: ValidLoader<M>,
}

impl<'a, M: LearnerModel> Replica<'a, M> {
    fn new(
        strategy: &'a DataParallel,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: &TrainLoader<M>,
        valid: &ValidLoader<M>,
        starting_epoch: usize,
    ) -> Result<Self> {
        let communicator = &*strategy.communicator;
        let TrainingComponents {
            num_epochs,
            grad_accumulation,
            ..
        } = &components;
        let num_items = train.num_items();
        strategy.check_equal(
            "training",
            &format!(
                "{num_items} items, epochs {starting_epoch} to {num_epochs}, gradient accumulation {grad_accumulation:?}"
            ),
        )?;
        learner.fork(&strategy.device);
        learner.load_model(broadcast_module(learner.model(), communicator, ROOT)?.into_record());
        let reducer = GradientReducer::new(
            &learner.model(),
            Arc::clone(&strategy.communicator),
            &ReducerConfig::default(),
        )?;
        let collector = reducer.collector();
        let hook = gradient_hook(move |parameter, gradient| {
            collector.take(parameter, gradient.as_slice().expect("gradients are f32"));
        });
        Ok(Self {
            communicator,
            components,
            learner,
            reducer,
            context: PassContext {
                hook: Some(hook),
                ..PassContext::current()
            },
            train: strategy.slice::<M>(train).to_device(&strategy.device),
            num_items,
            valid: valid.to_device(&strategy.device.clone().inner()),
        })
    }

    fn is_root(&self) -> bool {
        self.communicator.rank() == ROOT
    }

    fn interrupter(&self) -> &Interrupter {
        &self.components.interrupter
    }

    /// Passes an event of root to burn.
    fn on_train(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        if self.is_root() {
            let processed = self.components.event_processor.process_train(event);
            self.interrupter().fail_on_error(processed);
        }
    }

    fn on_valid(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        let processed = self.components.event_processor.process_valid(event);
        self.interrupter().fail_on_error(processed);
    }

    fn run(&mut self, starting_epoch: usize) -> Result<()> {
        for epoch in starting_epoch..=self.components.num_epochs {
            self.on_train(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: self.num_items,
            });
            let goes_on = self.train_epoch()?;
            self.on_train(LearnerEvent::EndSplit(epoch));
            if !goes_on {
                break;
            }
            check_fingerprint(&self.learner.model(), self.communicator, epoch as u64)?;
            // Running states are shared with the learner's model: this sets them there.
            drop(average_norm_statistics(
                self.learner.model(),
                self.communicator,
            )?);
            if self.is_root() {
                self.validate(epoch);
            }
            // An interrupt leaves no checkpoint, as in burn's own loop.
            if self.meet(0)?.is_none() {
                break;
            }
            let is_enough = self.is_root() && self.save_and_judge(epoch);
            if self
                .meet(u64::from(is_enough))?
                .is_none_or(|counts| counts[ROOT] > 0)
            {
                break;
            }
        }
        Ok(())
    }

    /// Writes a checkpoint. Returns true if early stopping ends the training after this epoch.
    fn save_and_judge(&mut self, epoch: usize) -> bool {
        let TrainingComponents {
            checkpointer,
            early_stopping,
            event_store,
            ..
        } = &mut self.components;
        if let Some(checkpointer) = checkpointer {
            checkpointer.checkpoint(&self.learner, epoch, event_store);
        }
        early_stopping
            .as_mut()
            .is_some_and(|early_stopping| early_stopping.should_stop(epoch, event_store))
    }

    /// Gathers the counts of all ranks; `None` if one of them was interrupted, which interrupts
    /// all.
    fn meet(&self, count: u64) -> Result<Option<Vec<u64>>> {
        let is_interrupted = self.interrupter().should_stop();
        let own = if is_interrupted { STOP } else { count };
        let all = self.communicator.all_gather(&own.to_le_bytes())?;
        let counts: Vec<u64> = all
            .into_iter()
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes of each rank")))
            .collect();
        match counts.iter().position(|&count| count == STOP) {
            None => Ok(Some(counts)),
            Some(rank) => {
                if !is_interrupted {
                    self.interrupter()
                        .stop(Some(&format!("rank {rank} was interrupted, or failed")));
                }
                Ok(None)
            }
        }
    }

    /// Trains an epoch. Returns false if the training was interrupted.
    fn train_epoch(&mut self) -> Result<bool> {
        let train = Arc::clone(&self.train);
        let mut batches = train.iter();
        let accumulated = self.components.grad_accumulation.unwrap_or(1);
        let mut num_done = 0;
        let mut own_done = 0;
        let mut iteration = 0;
        let mut pending = 0;
        loop {
            let batch = next_batch(&mut *batches, self.interrupter());
            let Progress {
                items_processed,
                unit,
                ..
            } = batches.progress();
            // With a loader that does not count items, every batch has the same weight.
            let count = if batch.is_some() {
                items_processed.saturating_sub(own_done).max(1) as u64
            } else {
                0
            };
            own_done = items_processed;
            let Some(counts) = self.meet(count)? else {
                return Ok(false);
            };
            let total: u64 = counts.iter().sum();
            if total == 0 {
                break;
            }
            num_done += total as usize;
            iteration += 1;
            pending += 1;
            let is_last = pending == accumulated;
            let weight = count as f32 / total as f32;
            let output = batch.map(|batch| {
                self.backward(
                    batch,
                    MicroStepConfig {
                        weight,
                        is_last,
                        ..Default::default()
                    },
                )
            });
            if is_last {
                self.update()?;
                pending = 0;
            }
            if let Some(output) = output {
                let progress = Progress::new(num_done, self.num_items, unit);
                let item = TrainingItem::new(
                    output,
                    progress,
                    Some(iteration),
                    Some(self.learner.lr_current()),
                );
                self.on_train(LearnerEvent::ProcessedItem(item));
            }
        }
        if pending > 0 {
            self.update()?;
        }
        Ok(true)
    }

    /// Runs the forward and backward pass of this rank's batch; its gradients go to the reducer.
    fn backward(
        &mut self,
        batch: <M as TrainStep>::Input,
        how: MicroStepConfig,
    ) -> <M as TrainStep>::Output {
        self.reducer.begin_micro_step(how);
        let TrainOutput { grads, item } = self
            .context
            .clone()
            .scope(|| self.learner.train_step(batch));
        self.reducer
            .accumulate_params(&self.learner.model(), grads, how.weight);
        item
    }

    fn update(&mut self) -> Result<()> {
        let gradients = self.reducer.reduce()?.to_params(&self.learner.model());
        self.learner.lr_step();
        self.learner.optimizer_step(gradients);
        Ok(())
    }

    /// Validates on root, while the others wait.
    fn validate(&mut self, epoch: usize) {
        let total_items = self.valid.num_items();
        self.on_valid(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        });
        let model = self.learner.model().valid();
        let valid = Arc::clone(&self.valid);
        let mut iteration = 0;
        let mut batches = valid.iter();
        while let Some(batch) = next_batch(&mut *batches, self.interrupter()) {
            iteration += 1;
            let output = InferenceStep::step(&model, batch);
            self.on_valid(LearnerEvent::ProcessedItem(TrainingItem::new(
                output,
                batches.progress(),
                Some(iteration),
                None,
            )));
            if self.interrupter().should_stop() {
                break;
            }
        }
        self.on_valid(LearnerEvent::EndSplit(epoch));
        self.on_train(LearnerEvent::EndEpoch(epoch));
        let flushed = self.components.event_processor.flush();
        self.interrupter().fail_on_error(flushed);
    }
}

/// Returns the next batch; an error of the loader goes to the interrupter.
fn next_batch<T>(
    batches: &mut (dyn DataLoaderIterator<T> + '_),
    interrupter: &Interrupter,
) -> Option<T> {
    match batches.next()? {
        Ok(batch) => Some(batch),
        Err(error) => {
            interrupter.fail(error);
            None
        }
    }
}
