//! The speed of the whole training step on random pixels made once.
//!
//! In: what to measure, the ranks. Out: [`BenchResult`], and the step without its waiting for a prediction.
//! Invariant: the step is the one `train` makes; only the input costs nothing but a copy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use datasets::{LoadedStep, Loader, LoaderConfig, ShardConfig, ShardPlan, SyntheticConfig, synthetic};
use distributed::{Communicator, ParameterLayout, Whereabouts};
use layers::{KernelTime, kernel_times};
use records::{BenchResult, BucketRecord, PROFILE_SCHEMA, ParameterRecord, ProfileFile};

use crate::clock::{Phase, PhaseClock, minor_page_faults};
use crate::config::{BatchNormKind, BenchConfig, Filled, InputKind, scaling_method_name};
use crate::device_kernels::observed;
use crate::gather::{OwnTimes, RankTimes, peak_memory_bytes, slowest_rank};
use crate::input::Input;
use crate::job;
use crate::loss_scale::LossScaling;
use crate::manifest::cpu_model;
use crate::metrics::{ScoreSums, ThroughputStats};
use crate::model::ImageClassifier;
use crate::network::{ModelRequest, resnet};
use crate::optimizer::SgdConfig;
use crate::predict_scaling::step_of;
use crate::ranks::World;
use crate::roles::Role;
use crate::step::{StepConfig, StepPosition, Stepper};
use crate::synchronizer::{self, own_shards};
use crate::trace::{self, TraceClock};

/// Different batches in turn, so that no step repeats the one before.
const NUM_BATCHES: usize = 4;

/// Further steps, in which the kernels of a GPU are counted and timed.
const NUM_OBSERVED: usize = 4;

/// Median absolute deviation of a normal distribution, in standard deviations, inverted.
const NORMAL_SPREAD: f64 = 1.4826;

/// Small, so that random labels do not blow the loss up.
const LEARNING_RATE: f64 = 0.01;

/// What was measured on a rank that trains.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// As it is printed.
    pub result: BenchResult,
    /// Speed over the slowest rank's steps.
    pub stats: ThroughputStats,
    /// This rank's seconds in steps.
    pub own_seconds: f64,
    /// The step without its waiting: times of the slowest rank, arrivals of gradients and kernels of this one.
    pub profile: ProfileFile,
}

/// Measures training steps; `None` on a rank that only served parameters.
///
/// # Errors
/// When a step fails.
///
/// # Collective
/// Must be called by all ranks.
pub fn measure(config: &BenchConfig, world: &World) -> Result<Option<Measurement>> {
    let (num_warmup, num_measured) = (config.warmup_steps.filled(), config.steps.filled());
    trace::check(config.sync.trace.as_deref(), &*world.communicator)?;
    let (device, threads) = world.prepare_compute(&config.compute)?;
    let training_device = device.clone().autodiff();
    let request = ModelRequest {
        num_classes: config.num_classes.filled(),
        in_channels: 3,
        seed: config.seed.filled(),
        compute: &config.compute,
        device: &training_device,
    };
    let model = resnet(&config.model, false, &request)?;
    let step_config = step_config(config, &world.whereabouts);
    let (communicator, server_link) = match Role::of(&step_config.sync, &world.communicator)? {
        Role::Worker { communicator, server_link } => (communicator, server_link),
        Role::Server(link) => {
            synchronizer::serve(&step_config.sync, step_config.sgd, &model, link, &world.whereabouts)?;
            return Ok(None);
        }
    };
    let batches = batches(config, &*communicator)?;
    if let Some(directory) = &config.export_job {
        let job = job::job(config, communicator.world_size(), batches.len(), LEARNING_RATE, &step_config.sgd)?;
        job::export(directory, &job, &model, &batches, &*communicator)?;
    }
    let step_config = StepConfig { server_link, ..step_config };
    let mut stepper = Stepper::new(model, step_config, Arc::clone(&communicator), &device)?;

    let trace = TraceClock::start(config.sync.trace.as_deref(), &*communicator)?;
    let new_clock = || if trace.is_some() { PhaseClock::keeping_spans() } else { PhaseClock::new() };
    let mut clock = new_clock();
    let (mut kernels_before, mut faults_before) = (kernel_times(), 0);
    let mut own = OwnTimes::default();
    // Where a device updates, a step's scores come with the next step.
    let mut scores_of_steps = Vec::with_capacity(num_warmup + num_measured);
    let mut ready_s = vec![0.0; stepper.reducer().layout().entries().len()];
    let num_steps = num_warmup + num_measured;
    let num_observed = num_observed(config, &*communicator)?;
    let steps = (0..num_steps + num_observed).map(move |step| Ok(batches[step % batches.len()].clone()));
    let mut input = Input::start(steps, config.compute.input.filled(), stepper.device());
    for step in 0..num_steps {
        if step == num_warmup {
            settle(&mut stepper, &mut scores_of_steps, &mut clock)?;
            communicator.barrier()?;
            clock = new_clock();
            stepper.take_traffic();
            (kernels_before, faults_before) = (kernel_times(), minor_page_faults());
        }
        ensure!(!world.stop.is_raised(), "bench: stopped by a signal in step {step}");
        let mut scores = ScoreSums::default();
        let start = Instant::now();
        let loaded = input.next().context("bench: there are as many batches as steps")??;
        clock.add_since(Phase::Data, start);
        let num_samples = loaded.global_num_samples as u64;
        let at = StepPosition { epoch: 0, step: step as u64, must_meet: false };
        stepper.step(at, loaded, LEARNING_RATE, false, &mut scores, &mut clock)?;
        if scores.num_samples > 0 {
            scores_of_steps.push(scores);
        }
        if step + 1 == num_steps {
            settle(&mut stepper, &mut scores_of_steps, &mut clock)?;
        }
        if step >= num_warmup {
            own.steps.push((num_samples, start.elapsed()));
            let ready = ready_s.iter_mut().zip(stepper.parameter_ready_s());
            ready.for_each(|(sum, ready)| *sum += ready / num_measured as f64);
        }
    }
    let kernel_seconds = kernel_seconds(&kernels_before, &kernel_times());
    let faults = minor_page_faults() - faults_before;
    own.seconds = clock.take_epoch();
    let traffic = stepper.take_traffic();
    if let Some(trace) = &trace {
        trace.write(&clock.take_spans(), &*communicator)?;
    }
    let own_seconds = own.seconds.step_total();
    let device_kernels = observed(num_observed, || {
        let mut scores = Vec::new();
        for step in num_steps..num_steps + num_observed {
            let loaded = input.next().context("bench: there are as many batches as steps")??;
            let at = StepPosition { epoch: 0, step: step as u64, must_meet: false };
            stepper.step(at, loaded, LEARNING_RATE, false, &mut ScoreSums::default(), &mut PhaseClock::new())?;
        }
        settle(&mut stepper, &mut scores, &mut PhaseClock::new())
    })?;
    let times = own.gather(&*communicator)?;
    let slowest = &times[slowest_rank(&times)];
    let stats = slowest.steps.speed.context("bench: no step was measured")?;
    let result = BenchResult {
        model: config.model.name(),
        dtype: config.compute.dtype().to_string(),
        kernels: config.compute.kernels.filled().to_string(),
        device: format!("{device:?}"),
        ranks: communicator.world_size(),
        threads,
        batch_size_per_rank: config.batch_size_per_rank.filled(),
        global_batch_size: config.batch_size_per_rank.filled() * communicator.world_size(),
        steps: num_measured,
        warmup_steps: num_warmup,
        images_per_second: stats.mean,
        step_milliseconds_median: stats.step_milliseconds_median,
        step_milliseconds_min: slowest.steps.milliseconds.min,
        step_milliseconds_max: slowest.steps.milliseconds.max,
        seconds: slowest.seconds,
        kernel_seconds,
        device_kernels,
        minor_faults_per_step: faults as f64 / config.steps.filled() as f64,
        peak_memory_bytes: peak_memory_bytes(&times),
        peak_memory_bytes_total: times.iter().map(|rank| rank.peak_memory_bytes).sum(),
        device_memory_bytes: device.memory_pool_usage().map(|usage| usage.bytes_reserved),
        loss_mean: scores_of_steps.last().map_or(f64::NAN, ScoreSums::loss_mean),
        losses: global_losses(&*communicator, &scores_of_steps)?,
        bytes_sent_per_step: traffic.total.bytes_sent / traffic.num_steps.max(1),
        compression_error: traffic.total.relative_error(),
        method: scaling_method_name(&config.sync.method()),
        gradients: stepper.gradient_route().to_owned(),
        communication: communicator.library(),
    };
    let profile = profile(&result, slowest, &ready_s, stepper.reducer().layout(), config);
    stepper.finish()?;
    Ok(Some(Measurement { result, stats, own_seconds, profile }))
}

/// How many further steps all ranks make: none if one of them computes on a processor.
fn num_observed(config: &BenchConfig, communicator: &dyn Communicator) -> Result<usize> {
    let mut with_kernels = [u64::from(config.compute.device.filled().launches_kernels())];
    communicator.all_reduce_sum_u64(&mut with_kernels)?;
    Ok(if with_kernels == [communicator.world_size() as u64] { NUM_OBSERVED } else { 0 })
}

/// Waits for all steps made so far.
fn settle<M: ImageClassifier>(
    stepper: &mut Stepper<M>,
    scores_of_steps: &mut Vec<ScoreSums>,
    clock: &mut PhaseClock,
) -> Result<()> {
    let mut scores = ScoreSums::default();
    stepper.settle(&mut scores, clock)?;
    if scores.num_samples > 0 {
        scores_of_steps.push(scores);
    }
    Ok(())
}

/// The step of the slowest rank; `ready_s` of each parameter of `layout`.
fn profile(
    result: &BenchResult,
    slowest: &RankTimes,
    ready_s: &[f64],
    layout: &ParameterLayout,
    config: &BenchConfig,
) -> ProfileFile {
    let steps = config.steps.filled() as f64;
    let mean_s = slowest.steps.total.as_secs_f64() / steps;
    let median_s = slowest.steps.milliseconds.median / 1e3;
    // Means of the parts, made to add up to the median, which disturbed steps do not move.
    let part = |seconds: f64| seconds / steps * median_s / mean_s;
    let seconds = &slowest.seconds;
    // What one rank alone spends there is no waiting.
    let waiting_s = if result.ranks > 1 { part(seconds.communication) } else { 0.0 };
    let (forward_s, backward_s) = (part(seconds.forward), part(seconds.backward));
    let (optimizer_s, input_s) = (part(seconds.optimizer), part(seconds.data));
    let step_s = median_s - waiting_s;
    let parameters = layout.entries().iter().zip(ready_s).map(|(entry, ready_s)| ParameterRecord {
        name: entry.path.clone(),
        shape: entry.shape.clone(),
        ready_s: (ready_s * median_s / mean_s).min(backward_s),
    });
    let mut file = ProfileFile {
        schema: PROFILE_SCHEMA.to_owned(),
        created: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        cpu_model: cpu_model(),
        cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
        model: result.model.clone(),
        dtype: result.dtype.clone(),
        kernels: result.kernels.clone(),
        device: result.device.clone(),
        ranks: result.ranks,
        threads: result.threads,
        batch_size_per_rank: result.batch_size_per_rank,
        steps: config.steps.filled(),
        step_s,
        step_spread_s: NORMAL_SPREAD * slowest.steps.milliseconds_deviation / 1e3,
        forward_s,
        backward_s,
        optimizer_s,
        input_s,
        other_s: (step_s - forward_s - backward_s - optimizer_s - input_s).max(0.0),
        bucket_cap_bytes: synchronizer::bucket_cap_bytes(
            &config.sync_config(),
            layout.num_elements() * size_of::<f32>(),
        ) as u64,
        buckets: Vec::new(),
        parameters: parameters.collect(),
        kernel_seconds: result.kernel_seconds.iter().map(|(name, seconds)| (name.clone(), part(*seconds))).collect(),
    };
    let buckets = step_of(&file).with_bucket_cap(file.bucket_cap_bytes).buckets;
    file.buckets = buckets.iter().map(|bucket| BucketRecord { ready_s: bucket.ready_s, bytes: bucket.bytes }).collect();
    file
}

/// The mean loss of each step over the samples of all ranks.
fn global_losses(communicator: &dyn Communicator, own: &[ScoreSums]) -> Result<Vec<f64>> {
    let mut sums: Vec<f64> = own.iter().map(|scores| scores.loss_sum).collect();
    let mut counts: Vec<u64> = own.iter().map(|scores| scores.num_samples).collect();
    communicator.all_reduce_sum_f64(&mut sums)?;
    communicator.all_reduce_sum_u64(&mut counts)?;
    Ok(sums.iter().zip(counts).map(|(sum, count)| sum / count as f64).collect())
}

fn kernel_seconds(before: &[KernelTime], after: &[KernelTime]) -> BTreeMap<String, f64> {
    before.iter().zip(after).map(|(before, after)| (after.name.to_owned(), after.seconds - before.seconds)).collect()
}

/// This rank's share of a few global batches.
fn batches(config: &BenchConfig, communicator: &dyn Communicator) -> Result<Vec<LoadedStep>> {
    let global_batch_size = config.batch_size_per_rank.filled() * communicator.world_size();
    let side = config.image_size.filled();
    let data = synthetic::open(&SyntheticConfig {
        num_train: NUM_BATCHES * global_batch_size,
        num_test: 1,
        num_classes: config.num_classes.filled(),
        shape: datasets::ImageShape { height: side, width: side, channels: 3 },
        seed: config.seed.filled(),
    })?;
    let num_shards = config.sync.method().virtual_shards().unwrap_or(communicator.world_size());
    let own_shards = own_shards(num_shards, communicator.rank(), communicator.world_size());
    let plan = ShardPlan::new(ShardConfig {
        num_samples: data.train.len(),
        global_batch_size,
        seed: config.seed.filled(),
        epoch: 0,
        shuffle: false,
        drop_last: true,
        shard_index: own_shards.start,
        num_shards,
        num_own_shards: own_shards.len(),
    })?;
    let micro_batch_size = global_batch_size.div_ceil(num_shards);
    let raw = config.compute.input.filled() == InputKind::Device;
    let how = LoaderConfig { num_threads: 0, raw, ..LoaderConfig::new(micro_batch_size, data.normalization) };
    Ok(Loader::start(data.train, plan, how).collect::<Result<_, _>>()?)
}

fn step_config(config: &BenchConfig, whereabouts: &Arc<Whereabouts>) -> StepConfig {
    StepConfig {
        sgd: SgdConfig { momentum: 0.9, nesterov: false, weight_decay: 1e-4, decay_norm_and_bias: true },
        label_smoothing: 0.0,
        clip_norm: None,
        loss_scale: LossScaling::of(config.compute.dtype()),
        sync_batch_norm: config.batch_norm.filled() == BatchNormKind::Sync,
        skips_non_finite: false,
        sync: config.sync_config(),
        server_link: None,
        whereabouts: Arc::clone(whereabouts),
    }
}
