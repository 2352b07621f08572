//! Benchmark of a training step on random pixels.
//!
//! In: the configuration, the ranks. Out: [`BenchResult`], and the profile of a step without
//! waiting.
//! Invariant: the measured steps are the steps of `train`. Only the input differs: the step
//! copies one of a few batches.

mod profile;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use datasets::{LoadedStep, Loader, LoaderConfig, Samples, ShardConfig, ShardPlan};
use distributed::Communicator;
use distributed::watchdog::{Phase, RankStatus};
use layers::timing::{KernelCalls, KernelTime, kernel_times};
use records::{BenchResult, DeviceKernels, KernelAlone, ProfileFile, ThroughputStats};

use crate::config::{
    BatchNormKind, BenchConfig, Kernels, LossScaling, OptimizerChoice, ServerPlacement, SgdConfig,
    SyncMethod, scaling_method_name,
};
use crate::measure::energy::EnergyMeter;
use crate::measure::gather::{
    RankTimes, SessionTimes, joules_per_image, peak_memory_bytes, slowest_rank,
};
use crate::measure::metrics::{ScoreSums, StepTraffic};
use crate::measure::process_memory::minor_page_faults;
use crate::measure::timer::{Timer, seconds_since_1970};
use crate::measure::trace::{self, TraceClock};
use crate::model::family::ModelRequest;
use crate::model::input::Input;
use crate::step::sync_plan::{own_shards, vain_compression};
use crate::step::{self, StepConfig, StepContext, Stepper};
use crate::task::{BatchOf, Opening, Purpose, Setup, Task, build};
use crate::tools::device_kernels::observed;
use crate::tools::job;
use crate::world::ranks::{Role, World};

/// Number of additional steps, in which the kernels of a GPU are counted and timed.
const NUM_OBSERVED: usize = 4;

/// Learning rate, small enough that the loss on random labels does not diverge.
const LEARNING_RATE: f64 = 0.01;
/// Optimizer of the measured steps.
const SGD: SgdConfig = SgdConfig {
    momentum: 0.9,
    nesterov: false,
    weight_decay: 1e-4,
    decay_norm_and_bias: Some(true),
};

/// Measurement on a training rank.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Printed result.
    pub result: BenchResult,
    /// Speed over the steps of the slowest rank.
    pub stats: ThroughputStats,
    /// Time of this rank in steps, seconds.
    pub own_seconds: f64,
    /// Profile of a step without waiting.
    ///
    /// Phase times are those of the slowest rank. Gradient and kernel times are those of this rank.
    pub profile: ProfileFile,
    calls: KernelCalls,
}

impl Measurement {
    /// Measures each kernel of the step separately.
    ///
    /// All ranks of a machine measure at once, because they share its memory.
    pub fn add_alone(&mut self) {
        self.result.activation_walks = self.calls.walks();
        for kernel in self.calls.alone() {
            let alone = KernelAlone {
                seconds_per_step: kernel.seconds,
                bytes_per_step: kernel.bytes as u64,
            };
            self.result
                .kernels_alone
                .insert(kernel.name.to_owned(), alone);
        }
    }
}

// tidy: long function because it ends with one record of all results
/// Measures training steps. Returns `None` on a rank that only serves parameters.
/// Collective: all ranks.
pub fn measure<T: Task>(config: &BenchConfig, world: &World) -> Result<Option<Measurement>> {
    trace::check(config.sync.trace.as_deref(), &[], &*world.communicator)?;
    let (device, threads) = world.prepare_compute(&config.compute)?;
    let training_device = device.clone().autodiff();
    let args: T::Args = config.model.read()?;
    let opening = Opening {
        purpose: Purpose::Bench(config),
        communicator: &*world.communicator,
        reporter: &world.reporter,
    };
    let data = T::open(&args, &opening)?;
    let setup = Setup {
        purpose: Purpose::Bench(config),
        samples: &*data.train,
        input: None,
        device: &device,
    };
    let task = Arc::new(T::new(&args, &setup)?);
    let request = ModelRequest {
        seed: config.seed,
        ..task.request(&config.compute, &training_device)
    };
    let model = build(&*task, &args, &request)?;
    let step_config = step_config(config, &world.rank_status)?;
    let (communicator, server_link) = match Role::of(&step_config.sync, &world.communicator)? {
        Role::Worker {
            communicator,
            server_link,
        } => (communicator, server_link),
        Role::Server(link) => {
            step::serve(
                &step_config.sync,
                step_config.optimizer,
                &model,
                link,
                &world.rank_status,
            )?;
            return Ok(None);
        }
    };
    let batches = batches(config, data.train, &*communicator)?;
    if let Some(directory) = &config.export_job {
        let job = job::job(
            config,
            communicator.world_size(),
            batches.len(),
            LEARNING_RATE,
            &SGD,
        )?;
        let batches = (&batches as &dyn Any).downcast_ref::<Vec<LoadedStep>>();
        let batches = batches.with_context(|| {
            format!(
                "--export-job: expected a program of image classifiers, got one of the task {}",
                T::NAME
            )
        })?;
        job::export(directory, &job, &model, batches, &*communicator)?;
    }
    let step_config = StepConfig {
        server_link,
        ..step_config
    };
    let mut stepper = Stepper::new(
        &task,
        model,
        step_config,
        Arc::clone(&communicator),
        &device,
    )?;
    if let Some(warning) = stepper.route_warning() {
        world.reporter.warn(&warning);
    }
    if let Some(vain) = vain_compression(&config.sync.method, || stepper.reduction_state()) {
        bail!(vain);
    }

    let trace = TraceClock::start(config.sync.trace.as_deref(), &*communicator)?;
    let num_steps = config.warmup_steps + config.steps;
    let num_observed = num_observed(config, &*communicator)?;
    let steps =
        (0..num_steps + num_observed).map(move |step| Ok(batches[step % batches.len()].clone()));
    let mut input = Input::start(steps, config.compute.input, stepper.device());
    let (mut measured, calls) = measure_steps(
        config,
        world,
        (&task, &mut stepper, &mut input),
        trace.as_ref(),
        &*communicator,
    )?;
    // Read before the additional steps: they launch each kernel, and use more memory than a
    // captured step.
    let device_memory_bytes = device.memory_pool_usage().map(|usage| usage.bytes_reserved);
    let device_kernels = device_kernels(num_steps, num_observed, &task, &mut stepper, &mut input)?;
    let own_seconds = measured.times.seconds.step_total();
    let times = std::mem::take(&mut measured.times).gather(&*communicator)?;
    let slowest = &times[slowest_rank(&times)];
    let stats = slowest.steps.speed.context("bench: no step was measured")?;
    let traffic = measured.traffic.total;
    let losses = global_losses(&*communicator, &measured.scores)?;
    let num_nodes = world.communicator.topology().num_nodes;
    let result = BenchResult {
        model: config.model_name.clone(),
        dtype: config.compute.dtype().to_string(),
        // A model family without a choice of kernels uses burn's layers.
        kernels: config.compute.kernels.unwrap_or(Kernels::Stock).to_string(),
        device: config.compute.device.to_string(),
        ranks: communicator.world_size(),
        threads,
        batch_size_per_rank: config.batch_size_per_rank,
        grad_accum_steps: Some(config.grad_accum_steps).filter(|passes| *passes > 1),
        global_batch_size: config.samples_per_rank() * communicator.world_size(),
        options: config.step_options(),
        steps: config.steps,
        warmup_steps: config.warmup_steps,
        measured_unix_s: Some(measured.unix_s),
        images_per_second: stats.mean,
        step_milliseconds_median: stats.step_milliseconds_median,
        step_milliseconds_min: slowest.steps.milliseconds_min,
        step_milliseconds_max: slowest.steps.milliseconds_max,
        seconds: slowest.seconds,
        waiting_seconds: waiting_seconds(config, &times),
        kernel_seconds: measured.kernel_seconds,
        kernels_alone: BTreeMap::new(),
        activation_walks: 0.0,
        device_kernels,
        minor_faults_per_step: measured.num_page_faults as f64 / config.steps as f64,
        peak_memory_bytes: peak_memory_bytes(&times),
        peak_memory_bytes_total: times.iter().map(|rank| rank.peak_memory_bytes).sum(),
        device_memory_bytes,
        joules_per_image: joules_per_image(&times, num_nodes),
        loss_mean: measured
            .scores
            .last()
            .map_or(f64::NAN, ScoreSums::loss_mean),
        losses,
        bytes_sent_per_step: traffic.bytes_sent / measured.traffic.num_steps.max(1),
        compression_error: traffic.relative_error(),
        method: scaling_method_name(&stepper.sync_method()),
        gradients: stepper.gradient_route(),
        communication: communicator.library(),
    };
    let profile = profile::of(
        &result,
        slowest,
        &measured.ready_s,
        stepper.layout(),
        config,
    );
    stepper.finish()?;
    Ok(Some(Measurement {
        result,
        stats,
        own_seconds,
        profile,
        calls,
    }))
}

/// Runs additional steps that count and time the kernels of a GPU.
fn device_kernels<T: Task>(
    num_steps: usize,
    num_observed: usize,
    task: &Arc<T>,
    stepper: &mut Stepper<T::Model>,
    input: &mut Input<BatchOf<T>>,
) -> Result<Option<DeviceKernels>> {
    observed(num_observed, || {
        let timer = Timer::default();
        for step in num_steps..num_steps + num_observed {
            let loaded = next_step(input, &timer)?;
            // A step that keeps gradients is not captured, so its launches are visible.
            let context = StepContext {
                keeps_gradients: true,
                ..context(step)
            };
            stepper.step(task, context, loaded, &timer)?;
        }
        stepper.wait(&timer).map(|_| ())
    })
}

/// Measurement of this rank. Only the scores include the warm-up.
struct Measured {
    times: RankTimes,
    /// Start and end.
    unix_s: [f64; 2],
    kernel_seconds: BTreeMap<String, f64>,
    num_page_faults: u64,
    /// Scores of each step with samples on this rank.
    scores: Vec<ScoreSums>,
    /// Mean time from the start of the last backward pass to each parameter's gradient.
    ready_s: Vec<f64>,
    traffic: StepTraffic,
}

/// Runs the warm-up and the measured steps. Also returns the kernel calls of the last step.
fn measure_steps<T: Task>(
    config: &BenchConfig,
    world: &World,
    (task, stepper, input): (&Arc<T>, &mut Stepper<T::Model>, &mut Input<BatchOf<T>>),
    trace: Option<&TraceClock>,
    communicator: &dyn Communicator,
) -> Result<(Measured, KernelCalls)> {
    let new_times = || {
        let timer = Timer::new(Arc::clone(&world.rank_status)).keeping_spans(trace.is_some());
        SessionTimes::starting_at(0, timer, EnergyMeter::of_rank(communicator.topology()))
    };
    let counters = || (seconds_since_1970(), kernel_times(), minor_page_faults());
    let mut times = new_times();
    let mut before = counters();
    let (num_warmup, num_measured) = (config.warmup_steps, config.steps);
    let num_steps = num_warmup + num_measured;
    // On a device that runs the update, the scores of a step arrive with the next step.
    let mut scores = Vec::with_capacity(num_steps);
    let mut calls = KernelCalls::default();
    let mut ready_s = vec![0.0; stepper.layout().entries().len()];
    for step in world
        .reporter
        .paced("bench", ("step", num_steps), 0..num_steps)
    {
        if step == num_warmup {
            scores.extend(
                stepper
                    .wait(&times.timer)?
                    .and_then(|results| results.scores),
            );
            communicator.barrier()?;
            times = new_times();
            stepper.take_traffic();
            before = counters();
            times.energy.begin();
        }
        ensure!(
            !world.stop.is_raised(),
            "bench: stopped by a signal in step {step}"
        );
        let start = Instant::now();
        let timer = &times.timer;
        let loaded = next_step(input, timer)?;
        let num_samples = loaded.global_num_samples as u64;
        let (end, called) = KernelCalls::of(|| stepper.step(task, context(step), loaded, timer));
        scores.extend(end?.scores());
        calls = called;
        if step + 1 == num_steps {
            scores.extend(stepper.wait(timer)?.and_then(|results| results.scores));
        }
        times.add_step(step as u64, num_samples, start.elapsed());
        if step >= num_warmup {
            let ready = ready_s.iter_mut().zip(stepper.parameter_ready_s());
            ready.for_each(|(sum, ready)| *sum += ready / num_measured as f64);
        }
    }
    times.energy.end();
    let (begin_s, kernels_before, faults_before) = before;
    let (end_s, kernels, faults) = counters();
    if let Some(trace) = trace
        && let Some(warning) = trace.write(&times.timer.take_spans(), communicator)??
    {
        world.reporter.warn(&warning);
    }
    let measured = Measured {
        times: times.take_epoch(),
        unix_s: [begin_s, end_s],
        kernel_seconds: kernel_seconds(&kernels_before, &kernels),
        num_page_faults: faults - faults_before,
        scores,
        ready_s,
        traffic: stepper.take_traffic(),
    };
    Ok((measured, calls))
}

/// Returns the mean time in communication over the ranks; 0 if one rank trains without servers.
fn waiting_seconds(config: &BenchConfig, times: &[RankTimes]) -> f64 {
    let has_servers = matches!(
        config.sync.method,
        SyncMethod::ParameterServer {
            placement: ServerPlacement::Own,
            ..
        }
    );
    let is_alone = times.len() == 1 && !has_servers;
    let sum: f64 = times.iter().map(|rank| rank.seconds.communication).sum();
    if is_alone {
        0.0
    } else {
        sum / times.len() as f64
    }
}

/// Returns the number of additional steps of every rank: 0 if any rank computes on a CPU.
fn num_observed(config: &BenchConfig, communicator: &dyn Communicator) -> Result<usize> {
    let mut with_kernels = [u64::from(config.compute.device.launches_kernels())];
    communicator.all_reduce_sum_u64(&mut with_kernels)?;
    Ok(if with_kernels == [communicator.world_size() as u64] {
        NUM_OBSERVED
    } else {
        0
    })
}

fn next_step<B: Send + 'static>(input: &mut Input<B>, timer: &Timer) -> Result<LoadedStep<B>> {
    let _data = timer.enter(Phase::Data);
    Ok(input
        .next()
        .context("bench: there are as many batches as steps")??)
}

fn context(step: usize) -> StepContext {
    StepContext {
        step: step as u64,
        learning_rate: LEARNING_RATE,
        ..StepContext::default()
    }
}

/// Returns the mean loss of each step over the samples of all ranks.
fn global_losses(communicator: &dyn Communicator, own: &[ScoreSums]) -> Result<Vec<f64>> {
    let mut sums: Vec<f64> = own.iter().map(|scores| scores.loss_sum).collect();
    let mut weights: Vec<f64> = own.iter().map(|scores| scores.weight).collect();
    communicator.all_reduce_sum_f64(&mut sums)?;
    communicator.all_reduce_sum_f64(&mut weights)?;
    Ok(sums
        .iter()
        .zip(weights)
        .map(|(sum, weight)| sum / weight)
        .collect())
}

fn kernel_seconds(before: &[KernelTime], after: &[KernelTime]) -> BTreeMap<String, f64> {
    let spent = before
        .iter()
        .zip(after)
        .map(|(before, after)| (after.name.to_owned(), after.seconds - before.seconds));
    spent.filter(|(_, seconds)| *seconds > 0.0).collect()
}

/// Returns this rank's share of a few global batches.
fn batches<S: Samples>(
    config: &BenchConfig,
    samples: Arc<S>,
    communicator: &dyn Communicator,
) -> Result<Vec<LoadedStep<S::Batch>>> {
    let global_batch_size = config.samples_per_rank() * communicator.world_size();
    let num_shards = config
        .sync
        .method
        .virtual_shards()
        .unwrap_or(communicator.world_size());
    let own_shards = own_shards(num_shards, communicator.rank(), communicator.world_size());
    ensure!(
        samples.len() >= global_batch_size,
        "--batch-size-per-rank: expected batches of at most {} samples over all ranks, as many as there are, got {global_batch_size}",
        samples.len()
    );
    let plan = ShardPlan::new(ShardConfig {
        seed: config.seed,
        drop_last: true,
        shard_index: own_shards.start,
        num_shards,
        num_own_shards: own_shards.len(),
        ..ShardConfig::new(samples.len(), global_batch_size)
    })?;
    let micro_batch_size = global_batch_size.div_ceil(num_shards * config.grad_accum_steps);
    let how = LoaderConfig {
        num_threads: 0,
        ..LoaderConfig::new(micro_batch_size)
    };
    let steps = Loader::start(samples, plan, how);
    Ok(steps
        .take(BenchConfig::NUM_BATCHES)
        .collect::<Result<_, _>>()?)
}

fn step_config(config: &BenchConfig, rank_status: &Arc<RankStatus>) -> Result<StepConfig> {
    Ok(StepConfig {
        computation: config.compute.computation()?,
        loss_scale: LossScaling::of(config.compute.dtype()),
        sync_batch_norm: config.batch_norm == BatchNormKind::Sync,
        rank_status: Arc::clone(rank_status),
        gpu: config.compute.device.gpu(),
        ..StepConfig::new(OptimizerChoice::Sgd(SGD), config.sync.clone())
    })
}
