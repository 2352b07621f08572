//! Checks by training steps of a small network: against the reference, with two ranks, for leaks.
//!
//! In: a device. Out: losses and updates of ten steps, those of two ranks, the growth of memory.
//! Invariant: a seed determines weights and batches, so two devices begin with the same bits.
//!
//! The ranks are threads of this process with joint norm statistics. On a GPU, memory is that of
//! the device's allocator. On other devices, memory is the resident memory of the process.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use datasets::{
    ImageSamples, LoadedStep, Loader, LoaderConfig, ShapesDataset, ShardConfig, ShardPlan, Upload,
};
use distributed::communicator::SingleCommunicator;
use distributed::{Communicator, try_run_ranks};
use records::bytes;

use super::{Subject, of_largest, reference, relative_l2};
use crate::config::cli::ModelArgs;
use crate::config::{
    AdamConfig, ComputeSection, LossScaling, OptimizerChoice, SgdConfig, SyncSection, UpdateKind,
};
use crate::measure::process_memory::resident_memory_bytes;
use crate::measure::timer::Timer;
use crate::model::family::ModelRequest;
use crate::model::loss::CrossEntropy;
use crate::model::network::{Network, NetworkFamily, resnet};
use crate::step::{StepConfig, StepContext, Stepper};
use crate::task::Classification;
use crate::tools::check::{Compared, Finding, Skipped};

/// Learning rates, used in turn, because a replayed step must not keep the captured step's rate.
///
/// At these rates the first losses fall smoothly. Jumps would amplify rounding errors.
const LEARNING_RATES: [f64; 3] = [0.002, 0.004, 0.001];

/// SGD with a weight decay that is visible within ten steps.
const SGD: OptimizerChoice = OptimizerChoice::Sgd(SgdConfig {
    momentum: 0.9,
    nesterov: false,
    weight_decay: 1e-1,
    decay_norm_and_bias: Some(true),
});

/// AdamW with an epsilon of the size of the gradients.
///
/// With a small epsilon, the first steps follow the signs of gradients, which depend on rounding.
const ADAMW: OptimizerChoice = OptimizerChoice::Adamw(AdamConfig {
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 0.1,
    weight_decay: 1e-1,
    decay_norm_and_bias: Some(true),
});

/// Network, batches and optimizer of a check.
#[derive(Clone, Copy, Debug)]
struct Lesson {
    depth: usize,
    batch_size: usize,
    /// Number of different batches, used in turn.
    num_batches: usize,
    /// Number of images in the last batch.
    last_batch_size: usize,
    optimizer: OptimizerChoice,
}

/// A small network that trains with the step of `train`.
struct Trainee {
    task: Arc<Classification<NetworkFamily>>,
    stepper: Stepper<Network>,
    batches: Vec<LoadedStep>,
    timer: Timer,
    num_steps: u64,
}

impl Trainee {
    /// Returns the trainee of one rank, with norm statistics over all ranks.
    fn new(
        lesson: Lesson,
        (device, compute): (&Device, &ComputeSection),
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let num_samples = lesson.batch_size * (lesson.num_batches - 1) + lesson.last_batch_size;
        let data = ShapesDataset::new(num_samples, 1, 7)?;
        let plan = ShardPlan::new(ShardConfig {
            seed: 7,
            shuffle: true,
            shard_index: communicator.rank(),
            num_shards: communicator.world_size(),
            ..ShardConfig::new(num_samples, lesson.batch_size)
        })?;
        let micro_batch_size = lesson.batch_size.div_ceil(communicator.world_size());
        let how = LoaderConfig {
            num_threads: 0,
            ..LoaderConfig::new(micro_batch_size)
        };
        let model = ModelArgs::resnet(lesson.depth);
        let training_device = device.clone().autodiff();
        let request = ModelRequest {
            in_channels: data.train.image_shape().channels,
            seed: 7,
            ..ModelRequest::new(data.train.class_names().len(), compute, &training_device)
        };
        let sync = SyncSection {
            // Norm statistics over all ranks need main memory.
            update: match communicator.world_size() {
                1 => compute.device.update(),
                _ => UpdateKind::Host,
            },
            ..SyncSection::default()
        };
        let config = StepConfig {
            loss_scale: LossScaling::of(compute.dtype()),
            sync_batch_norm: communicator.world_size() > 1,
            ..StepConfig::new(lesson.optimizer, sync)
        };
        let model = Network::ResNet(resnet(&model, &request)?);
        let samples = Arc::new(ImageSamples::new(data.train, data.normalization));
        let loss = Arc::new(CrossEntropy::default());
        let task = Arc::new(Classification::with(loss, Vec::new()));
        Ok(Self {
            stepper: Stepper::new(&task, model, config, communicator, device)?,
            task,
            batches: Loader::start(samples, plan, how).collect::<Result<_, _>>()?,
            timer: Timer::default(),
            num_steps: 0,
        })
    }

    /// Runs a step and returns the mean loss of this rank's samples.
    fn step(&mut self) -> Result<f32> {
        let loaded = self.batches[self.num_steps as usize % self.batches.len()].clone();
        let loaded = loaded.map(|batch| batch.upload(self.stepper.device()));
        let learning_rate = LEARNING_RATES[self.num_steps as usize % LEARNING_RATES.len()];
        let context = StepContext {
            step: self.num_steps,
            learning_rate,
            ..StepContext::default()
        };
        let end = self
            .stepper
            .step(&self.task, context, loaded, &self.timer)?;
        let results = self.stepper.wait(&self.timer)?.or(end.results);
        let scores = results.and_then(|results| results.scores);
        self.num_steps += 1;
        Ok(scores.unwrap_or_default().loss_mean() as f32)
    }

    /// Copies the images of the first batch to all full batches, like a device that never uploads.
    #[cfg(all(test, feature = "flex"))]
    fn show_one_batch(&mut self) {
        let first = self.batches[0].micro_batches[0].clone();
        let others = self
            .batches
            .iter_mut()
            .flat_map(|step| &mut step.micro_batches);
        others
            .filter(|micro| micro.num_samples == first.num_samples)
            .for_each(|micro| micro.batch.pixels = first.batch.pixels.clone());
    }
}

/// Steps that are compared with the reference: two epochs whose last batch is short.
///
/// A device that chose a kernel for a full batch may compute a short batch wrongly.
const NUM_STEPS: usize = 10;

/// Returns the depth of the network and the number of images in a full batch.
fn size(is_quick: bool) -> (usize, usize) {
    if is_quick { (8, 4) } else { (20, 64) }
}

/// Results of several steps.
#[derive(PartialEq)]
struct Course {
    losses: Vec<f32>,
    /// Changes of the parameters; the parameters themselves would hide a wrong gradient.
    update: Vec<f32>,
}

pub(super) fn ten_steps(subject: &Subject<'_>) -> Result<Finding> {
    let (device, compute) = reference(&subject.compute)?;
    let (depth, batch_size) = size(subject.args.quick);
    let precision = subject.precision;
    let mut comparisons = Vec::new();
    for (name, optimizer) in [("SGD", SGD), ("AdamW", ADAMW)] {
        let lesson = Lesson {
            depth,
            batch_size,
            num_batches: NUM_STEPS / 2,
            last_batch_size: batch_size - 1,
            optimizer,
        };
        let expected = course(lesson, &compute, &device)?;
        let got = course(lesson, &subject.compute, &subject.device)?;
        let again = course(lesson, &subject.compute, &subject.device)?;
        let losses = of_largest(&expected.losses, &got.losses);
        let update = relative_l2(&expected.update, &got.update);
        let bits = if again == got {
            "the same bits"
        } else {
            "different bits"
        };
        comparisons.extend([
            Compared::difference(
                format!("ten losses of {name}, of the largest"),
                losses,
                precision.losses,
            ),
            Compared::difference(
                format!("change of the parameters by {name}, relative L2"),
                update,
                precision.update,
            ),
            Compared::shown(format!("the same steps of {name} repeated"), bits),
        ]);
    }
    Ok(Finding::compared(comparisons))
}

/// Runs [`NUM_STEPS`] steps of one rank.
fn course(lesson: Lesson, compute: &ComputeSection, device: &Device) -> Result<Course> {
    let alone = Arc::new(SingleCommunicator::new());
    course_of(Trainee::new(lesson, (device, compute), alone)?, NUM_STEPS)
}

fn course_of(mut trainee: Trainee, num_steps: usize) -> Result<Course> {
    let before = trainee.stepper.parameters().into_owned();
    let losses = (0..num_steps).map(|_| trainee.step());
    let losses = losses.collect::<Result<_>>()?;
    let after = trainee.stepper.parameters();
    let change = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before);
    let update = change.collect();
    Ok(Course { losses, update })
}

/// Number of steps of two ranks. The first shows the gradient, and the second follows an update.
///
/// More steps would only amplify rounding errors.
const RANK_STEPS: usize = 2;

/// The lesson of both ranks together.
const LESSON: Lesson = Lesson {
    depth: 8,
    batch_size: 8,
    num_batches: RANK_STEPS,
    last_batch_size: 8,
    optimizer: SGD,
};

pub(super) fn ranks(subject: &Subject<'_>) -> Result<Finding> {
    let update = |communicator: Arc<dyn Communicator>| -> Result<Vec<f32>> {
        let on = (&subject.device, &subject.compute);
        Ok(course_of(Trainee::new(LESSON, on, communicator)?, RANK_STEPS)?.update)
    };
    let single = update(Arc::new(SingleCommunicator::new()))?;
    let updates = try_run_ranks(2, |communicator| update(Arc::new(communicator)))
        .context("ranks: the system refused a thread")?;
    let updates = updates.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(Finding::compared(vec![
        Compared::same_bits("parameters of both ranks", &updates[0], &updates[1]),
        Compared::difference(
            "change of the parameters in two steps, relative L2",
            relative_l2(&single, &updates[0]),
            subject.precision.ranks,
        ),
    ]))
}

/// Sums three tensors of one rank with NCCL on this GPU. The sums must equal the rank's values.
#[cfg(feature = "cuda")]
pub(super) fn nccl(subject: &Subject<'_>) -> Result<Finding> {
    use burn::tensor::{Tensor, TensorData};
    use distributed::CollectiveError;
    use distributed::gradients::NcclReduction;

    use crate::model::floats;

    let Some(gpu) = NcclReduction::gpu_of(&subject.device) else {
        bail!(Skipped(
            "NCCL sums on NVIDIA GPUs: --device cuda".to_owned()
        ));
    };
    let alone = SingleCommunicator::new();
    let reduction = match NcclReduction::new(&alone, gpu, Arc::default()) {
        Err(error @ CollectiveError::NcclUnavailable { .. }) => {
            bail!(Skipped(error.to_string()));
        }
        reduction => Arc::new(reduction?),
    };
    let mut expected = Vec::new();
    let mut got = Vec::new();
    // Two sums of one length, as in a step, and one of a length that is not a power of two.
    for len in [1 << 18, 1001, 1 << 18] {
        let values: Vec<f32> = (0..len).map(|index| index as f32 - 7.25).collect();
        expected.extend_from_slice(&values);
        let own = Tensor::from_data(TensorData::new(values, [len]), &subject.device);
        let (sum, _) = reduction.sum(own);
        got.extend(floats(sum.into_data())?);
    }
    Ok(Finding::compared(vec![Compared::same_bits(
        "three tensors",
        &expected,
        &got,
    )]))
}

#[cfg(not(feature = "cuda"))]
pub(super) fn nccl(_subject: &Subject<'_>) -> Result<Finding> {
    bail!(Skipped(
        "this program was built without cuda: rebuild with --features cuda".to_owned(),
    ))
}

/// Number of steps that fill pools and caches.
const WARMUP_STEPS: usize = 10;

/// Permitted growth.
///
/// A leak of one activation of the first stage, 256 KiB, in each of 25 steps exceeds it.
const BOUND_BYTES: u64 = 4 << 20;

pub(super) fn memory(subject: &Subject<'_>) -> Result<Finding> {
    let num_steps = if subject.args.quick { 100 } else { 1000 };
    // A leak occurs at every step, whatever its size. A GPU uses the large network, for which
    // another check has compiled the kernels.
    let is_tiny = subject.args.quick || subject.device.memory_pool_usage().is_none();
    let (depth, batch_size) = size(is_tiny);
    let lesson = Lesson {
        depth,
        batch_size,
        num_batches: 4,
        last_batch_size: batch_size,
        optimizer: SGD,
    };
    let on = (&subject.device, &subject.compute);
    let mut trainee = Trainee::new(lesson, on, Arc::new(SingleCommunicator::new()))?;
    let mut held = Vec::with_capacity(num_steps);
    for step in 0..WARMUP_STEPS + num_steps {
        if subject.world.stop.is_raised() {
            bail!(Skipped("stopped by a signal".to_owned()));
        }
        trainee.step()?;
        if step >= WARMUP_STEPS {
            held.push(held_bytes(&subject.device));
        }
    }
    if held.contains(&0) {
        bail!(Skipped(
            "neither the device nor the system reports its memory".to_owned(),
        ));
    }
    Ok(Finding::compared(vec![flatness(&held)]))
}

fn held_bytes(device: &Device) -> u64 {
    device
        .memory_pool_usage()
        .map_or_else(resident_memory_bytes, |usage| usage.bytes_reserved)
}

/// Compares the largest value of the last quarter with the largest value before.
///
/// Pools may fill for a long time, but a leak never ends.
fn flatness(held: &[u64]) -> Compared {
    let (before, last) = held.split_at(held.len() - held.len() / 4);
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
    let before = most(before);
    let last = most(last);
    let growth = last.saturating_sub(before);
    Compared {
        what: "growth of the maximum in the last quarter of the steps".to_owned(),
        expected: "0 B".to_owned(),
        got: format!(
            "{} ({} after {})",
            bytes(growth),
            bytes(last),
            bytes(before)
        ),
        tolerance: bytes(BOUND_BYTES),
        passes: before > 0 && growth <= BOUND_BYTES,
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::precision::{HALF, SINGLE};
    use super::*;

    fn trainee(lesson: Lesson, compute: &ComputeSection, device: &Device) -> Result<Trainee> {
        Trainee::new(
            lesson,
            (device, compute),
            Arc::new(SingleCommunicator::new()),
        )
    }

    #[test]
    fn rules_that_are_off_by_a_twentieth_or_leave_decay_out_are_seen_in_f32() -> Result<()> {
        let (device, compute) = reference(&ComputeSection::default())?;
        let (depth, batch_size) = size(true);
        let update = |optimizer| {
            let lesson = Lesson {
                depth,
                batch_size,
                num_batches: 5,
                last_batch_size: batch_size - 1,
                optimizer,
            };
            course(lesson, &compute, &device).map(|course| course.update)
        };
        let (OptimizerChoice::Sgd(sgd), OptimizerChoice::Adamw(adamw)) = (SGD, ADAMW) else {
            unreachable!("their names")
        };
        let of_sgd = update(SGD)?;
        let of_adamw = update(ADAMW)?;
        for (expected, wrong) in [
            (
                &of_sgd,
                OptimizerChoice::Sgd(SgdConfig {
                    momentum: 0.855,
                    ..sgd
                }),
            ),
            (
                &of_sgd,
                OptimizerChoice::Sgd(SgdConfig {
                    weight_decay: 0.0,
                    ..sgd
                }),
            ),
            (
                &of_adamw,
                OptimizerChoice::Adamw(AdamConfig {
                    beta1: 0.855,
                    beta2: 0.99,
                    ..adamw
                }),
            ),
            (
                &of_adamw,
                OptimizerChoice::Adamw(AdamConfig {
                    weight_decay: 0.0,
                    ..adamw
                }),
            ),
        ] {
            let off = relative_l2(expected, &update(wrong)?);
            assert!(off > 1.5 * SINGLE.update, "{wrong:?}: {off:e}");
        }
        Ok(())
    }

    #[test]
    fn images_that_stay_those_of_the_first_batch_are_seen_at_the_widest_tolerance() -> Result<()> {
        let (device, compute) = reference(&ComputeSection::default())?;
        for optimizer in [SGD, ADAMW] {
            let lesson = Lesson {
                depth: 8,
                batch_size: 16,
                num_batches: NUM_STEPS / 2,
                last_batch_size: 15,
                optimizer,
            };
            let expected = course(lesson, &compute, &device)?;
            let mut stale = trainee(lesson, &compute, &device)?;
            stale.show_one_batch();
            let got = course_of(stale, NUM_STEPS)?;
            let losses = of_largest(&expected.losses, &got.losses);
            let update = relative_l2(&expected.update, &got.update);
            assert!(
                losses > HALF.losses && update > HALF.update,
                "{losses:e} {update:e}"
            );
        }
        Ok(())
    }

    #[test]
    fn an_epoch_ends_with_the_short_batch_and_training_continues_after_it() -> Result<()> {
        let (device, compute) = reference(&ComputeSection::default())?;
        let lesson = Lesson {
            depth: 8,
            batch_size: 4,
            num_batches: 3,
            last_batch_size: 3,
            optimizer: SGD,
        };
        let mut trainee = trainee(lesson, &compute, &device)?;
        let sizes: Vec<_> = trainee
            .batches
            .iter()
            .map(|step| step.global_num_samples)
            .collect();
        assert_eq!(sizes, [4, 4, 3]);
        for _ in 0..4 {
            assert!(trainee.step()?.is_finite());
        }
        Ok(())
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_fills_before_the_last_quarter_is_no_growth() {
        assert!(flatness(&[100 * MIB, 120 * MIB, 240 * MIB, 241 * MIB]).passes);
        assert!(!flatness(&[100 * MIB, 120 * MIB, 240 * MIB, 245 * MIB]).passes);
    }

    #[test]
    fn steady_growth_fails_and_so_does_nothing_measured() {
        let leaking: Vec<u64> = (0..100).map(|step| 100 * MIB + step * MIB / 4).collect();
        let comparison = flatness(&leaking);
        assert!(
            !comparison.passes && comparison.got.starts_with("6 MiB"),
            "{comparison:?}"
        );
        assert!(!flatness(&[]).passes);
    }
}
