//! `trainer bench`: the speed of the whole training step on random pixels made once.
//!
//! In: flags. Out: images/s over all ranks, step times, memory. Invariant: the step is the one `train` makes; only the
//! input costs nothing but a copy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn_resnet::{KernelTime, kernel_times};
use datasets::{LoadedStep, Loader, LoaderConfig, ShardConfig, ShardPlan, SyntheticConfig, synthetic};
use distributed::simulate::{BucketProfile, StepProfile};
use distributed::{BucketPlan, Communicator, Whereabouts};
use serde::Serialize;

use crate::cli::BenchArgs;
use crate::clock::{PhaseClock, minor_page_faults};
use crate::config::{BatchNormKind, BenchConfig};
use crate::gather::{RankTimes, peak_memory_bytes, slowest_rank};
use crate::metrics::{ScoreSums, Seconds, ThroughputStats};
use crate::network::{ModelRequest, resnet};
use crate::optimizer::SgdConfig;
use crate::ranks::World;
use crate::roles::Role;
use crate::simulation;
use crate::step::{StepConfig, StepPosition, Stepper};
use crate::synchronizer::{self, own_shards};
use crate::trace::TraceClock;

/// Different batches in turn, so that no step repeats the one before.
const NUM_BATCHES: usize = 4;

/// Small, so that random labels do not blow the loss up.
const LEARNING_RATE: f64 = 0.01;

/// What `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchResult {
    /// Name of the network.
    pub model: String,
    /// Number format of activations and their gradients.
    pub dtype: String,
    /// Whose kernels: fused or stock.
    pub kernels: String,
    /// Backend and device.
    pub device: String,
    /// Ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// Samples of one rank in one step.
    pub batch_size_per_rank: usize,
    /// Samples of one step over all ranks.
    pub global_batch_size: usize,
    /// Measured steps.
    pub steps: usize,
    /// Steps before them.
    pub warmup_steps: usize,
    /// Global samples over the slowest rank's time.
    pub images_per_second: f64,
    /// Median of the slowest rank's steps.
    pub step_milliseconds_median: f64,
    /// Fastest of them.
    pub step_milliseconds_min: f64,
    /// Slowest of them.
    pub step_milliseconds_max: f64,
    /// The slowest rank's seconds by phase over the measured steps.
    pub seconds: Seconds,
    /// Root's seconds in our own kernels over the measured steps, by kind; the rest of a step is tape, dispatch, burn's own
    /// operations and communication.
    pub kernel_seconds: BTreeMap<&'static str, f64>,
    /// Fresh pages a step on root, from the system.
    pub minor_faults_per_step: f64,
    /// Largest memory of any rank's process.
    pub peak_memory_bytes: u64,
    /// Mean loss of the last step on root, to compare with other programs.
    pub loss_mean: f64,
    /// Bytes of gradients that root sent in a step.
    pub bytes_sent_per_step: u64,
    /// What compression left out, as a share of the gradient's L2 norm.
    pub compression_error: f64,
    /// How gradients reach the other ranks.
    pub gradients: String,
    /// The communication library.
    pub communication: String,
}

/// Measures training steps.
///
/// # Errors
/// When flags contradict each other, or a step fails.
///
/// # Collective
/// Must be called by all ranks.
pub fn bench(args: &BenchArgs, world: &World) -> Result<()> {
    let config = BenchConfig::resolve(args, world.communicator.world_size())?;
    let watchdog = world.watch(config.sync.timeout)?;
    let (device, threads) = world.prepare_compute(&config.compute)?;
    let training_device = device.clone().autodiff();
    let request = ModelRequest {
        num_classes: config.num_classes,
        in_channels: 3,
        seed: config.seed,
        compute: &config.compute,
        device: &training_device,
    };
    let model = resnet(&config.model, false, &request)?;
    let step_config = step_config(&config, &world.whereabouts);
    let (communicator, server_link) = match Role::of(&config.sync, &world.communicator)? {
        Role::Worker { communicator, server_link } => (communicator, server_link),
        Role::Server(link) => {
            synchronizer::serve(&config.sync, step_config.sgd, &model, link)?;
            return world.end_watch(watchdog);
        }
    };
    let batches = batches(&config, &*communicator)?;
    let step_config = StepConfig { server_link, ..step_config };
    let mut stepper = Stepper::new(model, step_config, Arc::clone(&communicator), &device)?;

    let trace = TraceClock::start(config.sync.trace.as_deref(), &*communicator)?;
    let new_clock = || if trace.is_some() { PhaseClock::keeping_spans() } else { PhaseClock::new() };
    let mut clock = new_clock();
    let (mut kernels_before, mut faults_before) = (kernel_times(), 0);
    let mut own = RankTimes::default();
    let mut scores = ScoreSums::default();
    let mut ready_s = vec![0.0; stepper.reducer().plan().buckets().len()];
    for step in 0..config.warmup_steps + config.steps {
        if step == config.warmup_steps {
            communicator.barrier()?;
            clock = new_clock();
            stepper.take_traffic();
            (kernels_before, faults_before) = (kernel_times(), minor_page_faults());
        }
        ensure!(!world.stop.is_raised(), "bench: stopped by a signal in step {step}");
        scores = ScoreSums::default();
        let loaded = batches[step % batches.len()].clone();
        let num_samples = loaded.global_num_samples as u64;
        let at = StepPosition { epoch: 0, step: step as u64, must_meet: false };
        let start = Instant::now();
        stepper.step(at, loaded, LEARNING_RATE, false, &mut scores, &mut clock)?;
        if step >= config.warmup_steps {
            own.steps.push((num_samples, start.elapsed()));
            let ready = ready_s.iter_mut().zip(stepper.bucket_ready_s());
            ready.for_each(|(sum, ready)| *sum += ready / config.steps as f64);
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
    let times = own.gather(&*communicator)?;
    let slowest = &times[slowest_rank(&times)];
    let stats = ThroughputStats::of(&slowest.steps).context("bench: no step was measured")?;
    let step_ms = |pick: fn(f64, f64) -> f64, start: f64| {
        slowest.steps.iter().map(|(_, time)| time.as_secs_f64() * 1e3).fold(start, pick)
    };
    let result = BenchResult {
        model: config.model.name(),
        dtype: config.compute.dtype.to_string(),
        kernels: config.compute.kernels.to_string(),
        device: format!("{device:?}"),
        ranks: communicator.world_size(),
        threads,
        batch_size_per_rank: config.batch_size_per_rank,
        global_batch_size: config.batch_size_per_rank * communicator.world_size(),
        steps: config.steps,
        warmup_steps: config.warmup_steps,
        images_per_second: stats.mean,
        step_milliseconds_median: stats.step_milliseconds_median,
        step_milliseconds_min: step_ms(f64::min, f64::INFINITY),
        step_milliseconds_max: step_ms(f64::max, 0.0),
        seconds: slowest.seconds,
        kernel_seconds,
        minor_faults_per_step: faults as f64 / config.steps as f64,
        peak_memory_bytes: peak_memory_bytes(&times),
        loss_mean: scores.loss_mean(),
        bytes_sent_per_step: traffic.total.bytes_sent / traffic.num_steps.max(1),
        compression_error: traffic.total.relative_error(),
        gradients: stepper.gradient_route().to_owned(),
        communication: communicator.library(),
    };
    world.reporter.note(&format!(
        "{} {} on {} ranks x {} threads, batch {} a rank, {} steps after {} of warm-up:",
        result.model,
        result.device,
        result.ranks,
        result.threads,
        result.batch_size_per_rank,
        result.steps,
        result.warmup_steps
    ));
    world.reporter.speed(&stats, result.peak_memory_bytes);
    world.reporter.step_parts(own_seconds, &result.kernel_seconds, result.steps, result.minor_faults_per_step);
    if let Some(simulation) = &config.simulation {
        let profile = profile(&config, &result, &ready_s, stepper.reducer().plan());
        for line in simulation::lines(&profile, &config.sync, simulation)? {
            world.reporter.note(&line);
        }
    }
    if config.json {
        world.reporter.json(&result);
    }
    stepper.finish()?;
    world.end_watch(watchdog)
}

/// The measured step without its waiting, as a simulation takes it.
fn profile(config: &BenchConfig, result: &BenchResult, ready_s: &[f64], plan: &BucketPlan) -> StepProfile {
    let of_step = |seconds: f64| seconds / config.steps as f64;
    let buckets = plan
        .buckets()
        .iter()
        .zip(ready_s)
        .map(|(bucket, &ready_s)| BucketProfile { ready_s, bytes: (bucket.elements.len() * size_of::<f32>()) as u64 });
    let measured = result.step_milliseconds_median / 1e3;
    let backward_s = of_step(result.seconds.backward);
    let [forward_s, optimizer_s, waiting_s] =
        [result.seconds.forward, result.seconds.optimizer, result.seconds.communication].map(of_step);
    StepProfile {
        forward_s,
        backward_s,
        buckets: buckets.collect(),
        optimizer_s,
        other_s: (measured - waiting_s - forward_s - backward_s - optimizer_s).max(0.0),
        batch_size_per_rank: config.batch_size_per_rank,
        straggler_spread_s: 0.0,
    }
}

fn kernel_seconds(before: &[KernelTime], after: &[KernelTime]) -> BTreeMap<&'static str, f64> {
    before.iter().zip(after).map(|(before, after)| (after.name, after.seconds - before.seconds)).collect()
}

/// This rank's share of a few global batches.
fn batches(config: &BenchConfig, communicator: &dyn Communicator) -> Result<Vec<LoadedStep>> {
    let global_batch_size = config.batch_size_per_rank * communicator.world_size();
    let data = synthetic::open(&SyntheticConfig {
        num_train: NUM_BATCHES * global_batch_size,
        num_test: 1,
        num_classes: config.num_classes,
        shape: datasets::ImageShape { height: config.image_size, width: config.image_size, channels: 3 },
        seed: config.seed,
    })?;
    let num_shards = config.sync.method.virtual_shards().unwrap_or(communicator.world_size());
    let own_shards = own_shards(num_shards, communicator.rank(), communicator.world_size());
    let plan = ShardPlan::new(ShardConfig {
        num_samples: data.train.len(),
        global_batch_size,
        seed: config.seed,
        epoch: 0,
        shuffle: false,
        drop_last: true,
        shard_index: own_shards.start,
        num_shards,
        num_own_shards: own_shards.len(),
    })?;
    let micro_batch_size = global_batch_size.div_ceil(num_shards);
    let how = LoaderConfig { num_threads: 0, ..LoaderConfig::new(micro_batch_size, data.normalization) };
    Ok(Loader::start(data.train, plan, how).collect::<Result<_, _>>()?)
}

fn step_config(config: &BenchConfig, whereabouts: &Arc<Whereabouts>) -> StepConfig {
    StepConfig {
        sgd: SgdConfig { momentum: 0.9, nesterov: false, weight_decay: 1e-4, decay_norm_and_bias: true },
        label_smoothing: 0.0,
        clip_norm: None,
        sync_batch_norm: config.batch_norm == BatchNormKind::Sync,
        skips_non_finite: false,
        sync: config.sync.clone(),
        server_link: None,
        whereabouts: Arc::clone(whereabouts),
    }
}
