//! Decides every option of a run: fills in the defaults, checks the ranges, refuses contradictions.
//!
//! In: [`TrainArgs`] and the world size. Out: [`TrainConfig`]. Invariant: no file is opened here and nothing depends
//! on the machine, so that all ranks decide alike.

use super::TrainConfig;
use super::error::ConfigError;
use super::own_model::{ModelChoice, OwnModel, own_model};
use super::parts::{
    BatchConfig, ComputeConfig, Course, ModelConfig, OnNonFinite, OptimizerConfig, RunConfig, ScheduleConfig,
    TrainSplitConfig,
};
use crate::choices::{
    AugmentKind, BatchNormKind, ConvolutionKind, CpuKind, DatasetKind, DeviceChoice, Dtype, KernelsKind,
    OnNonFiniteKind, ScheduleKind, ShortcutKind,
};
use crate::cli::{BatchArgs, ComputeArgs, ModelArgs, OptimizerArgs, RunArgs, ScheduleArgs, TrainArgs, TrainSplitArgs};
use crate::loss_scale::LossScaling;
use burn_resnet::ResNetConfig;
use kernels::simd::Isa;
use std::borrow::Cow;

/// Bytes of a MiB.
pub(super) const MIB: f64 = 1024.0 * 1024.0;

/// Steps that are skipped by default before a run is given up: as many as a bad file may spoil, fewer than a run that has diverged.
const MAX_SKIPPED_STEPS: u64 = 10;

/// Largest image side that is still augmented by default: a crop of four pixels means nothing to larger ones.
const MAX_AUGMENTED_SIZE: usize = 64;

/// `own`: the program's own model, instead of the residual networks.
pub(super) fn train(own: Option<&OwnModel>, args: &TrainArgs, world_size: usize) -> Result<TrainConfig, ConfigError> {
    super::file::expect_writable(args)?;
    let data = super::data::data(&args.data, &args.train_split)?;
    let kind = data.source.kind();
    let sync = super::sync::sync(&args.sync, world_size)?;
    let batch = batch(&args.batch, kind, sync.method.num_workers(world_size), sync.method.virtual_shards())?;
    let compute = compute(&args.compute)?;
    let optimizer = optimizer(&args.optimizer, compute.dtype)?;
    super::sync::fits_batch(&sync, &batch, &args.batch)?;
    super::sync::fits_optimizer(&sync, &optimizer)?;
    super::sync::fits_loss_scale(&sync, optimizer.loss_scale)?;
    let run = run(&args.run, args.resume)?;
    super::sync::fits_skipping(&sync, run.on_non_finite)?;
    Ok(TrainConfig {
        model: match own {
            Some(own) => own_model(own, args)?,
            None => ModelChoice::Resnet(model(&args.model)?),
        },
        train_split: train_split(&args.train_split, kind, data.source.image_size())?,
        batch,
        sync: super::sync::on_device(sync, &args.sync, compute.device)?,
        optimizer,
        schedule: schedule(&args.schedule, kind)?,
        run,
        compute,
        data,
    })
}

pub(super) fn model(args: &ModelArgs) -> Result<ModelConfig, ConfigError> {
    let named = match args.model.as_deref() {
        None | Some("resnet") => None,
        Some(name) => Some(ResNetConfig::from_name(name)?.depth()),
    };
    if args.model.as_deref() == Some("resnet") && args.depth.is_none() {
        return Err(ConfigError::Missing {
            option: "--depth",
            because: "--model resnet does not tell the depth".to_owned(),
            remedy: "add it, or give --model resnet20".to_owned(),
        });
    }
    if let (Some(named), Some(depth)) = (named, args.depth)
        && named != depth
    {
        return Err(ConfigError::Conflict {
            option: "--depth",
            other: format!("--model resnet{named}"),
            remedy: "give one of them".to_owned(),
        });
    }
    let depth = ResNetConfig::cifar(args.depth.or(named).unwrap_or(20))?.depth();
    Ok(ModelConfig { depth, shortcut: args.shortcut.unwrap_or(ShortcutKind::A) })
}

fn train_split(args: &TrainSplitArgs, kind: DatasetKind, image_size: usize) -> Result<TrainSplitConfig, ConfigError> {
    // Shapes are drawn with random pose already, and random pixels have no pose.
    let crops = kind.is_cifar() || (kind == DatasetKind::ImageFolder && image_size <= MAX_AUGMENTED_SIZE);
    let augment = if crops { AugmentKind::CropFlip } else { AugmentKind::None };
    Ok(TrainSplitConfig {
        limit_train: args.limit_train.map(|count| at_least("--limit-train", count, 1)).transpose()?,
        augment: args.augment.unwrap_or(augment),
        drop_last: args.drop_last.unwrap_or(false),
    })
}

/// `virtual_shards`: the parts a global batch is computed in, where that is not accumulation times ranks.
fn batch(
    args: &BatchArgs,
    kind: DatasetKind,
    world_size: usize,
    virtual_shards: Option<usize>,
) -> Result<BatchConfig, ConfigError> {
    assert!(world_size > 0, "world_size: expected at least 1, got 0");
    let grad_accum_steps = at_least("--grad-accum-steps", args.grad_accum_steps.unwrap_or(1), 1)?;
    let parts = virtual_shards.unwrap_or_else(|| grad_accum_steps.saturating_mul(world_size));
    let default = if matches!(kind, DatasetKind::Shapes | DatasetKind::Synthetic) { 64 } else { 128 };
    let micro_batch_size = match (args.global_batch_size, args.batch_size_per_rank) {
        (Some(_), Some(_)) => {
            return Err(ConfigError::Conflict {
                option: "--global-batch-size",
                other: "--batch-size-per-rank".to_owned(),
                remedy: "give one of them (global = per rank * accumulation * ranks)".to_owned(),
            });
        }
        (None, Some(per_rank)) => at_least("--batch-size-per-rank", per_rank, 1)?,
        (None, None) => usize::div_ceil(default, parts),
        (Some(global_batch_size), None) => {
            at_least("--global-batch-size", global_batch_size, 1)?;
            if global_batch_size % parts != 0 {
                return Err(ConfigError::IndivisibleBatch {
                    global_batch_size,
                    world_size,
                    grad_accum_steps,
                    nearest_below: Some(global_batch_size / parts * parts).filter(|below| *below > 0),
                    nearest_above: global_batch_size.div_ceil(parts) * parts,
                });
            }
            global_batch_size / parts
        }
    };
    let global_batch_size = micro_batch_size.checked_mul(parts).ok_or_else(|| ConfigError::Invalid {
        option: "--batch-size-per-rank",
        expected: "a batch that can be counted".to_owned(),
        got: micro_batch_size.to_string(),
    })?;
    Ok(BatchConfig {
        global_batch_size,
        micro_batch_size,
        grad_accum_steps,
        world_size,
        batch_norm: args.batch_norm.unwrap_or(BatchNormKind::Local),
    })
}

fn optimizer(args: &OptimizerArgs, dtype: Dtype) -> Result<OptimizerConfig, ConfigError> {
    let is_scaled = args.scale_learning_rate.unwrap_or(false);
    if args.reference_batch_size.is_some() && !is_scaled {
        return Err(no_effect("--reference-batch-size", "without --scale-learning-rate", "add that or leave this out"));
    }
    let reference_batch_size = args.reference_batch_size.unwrap_or(128);
    let momentum = in_range("--momentum", args.momentum.unwrap_or(0.9), "0 up to but not 1", is_share)?;
    let nesterov = args.nesterov.unwrap_or(false);
    if nesterov && momentum == 0.0 {
        return Err(ConfigError::Conflict {
            option: "--nesterov",
            other: "--momentum 0".to_owned(),
            remedy: "give a momentum above 0, or --nesterov=false".to_owned(),
        });
    }
    let weight_decay =
        in_range("--weight-decay", args.weight_decay.unwrap_or(1e-4), "0 or more", |decay| decay >= 0.0)?;
    let decay_norm_and_bias = args.decay_norm_and_bias.unwrap_or(true);
    if !decay_norm_and_bias && weight_decay == 0.0 {
        return Err(no_effect("--decay-norm-and-bias=false", "with --weight-decay 0", "leave it out"));
    }
    let clip = |norm| in_range("--clip-grad-norm", norm, "above 0", |norm| norm > 0.0);
    Ok(OptimizerConfig {
        learning_rate: in_range("--learning-rate", args.learning_rate.unwrap_or(0.1), "above 0", |rate| rate > 0.0)?,
        reference_batch_size: is_scaled
            .then(|| at_least("--reference-batch-size", reference_batch_size, 1))
            .transpose()?,
        momentum,
        nesterov,
        weight_decay,
        decay_norm_and_bias,
        label_smoothing: in_range(
            "--label-smoothing",
            args.label_smoothing.unwrap_or(0.0),
            "0 up to but not 1",
            is_share,
        )?,
        clip_grad_norm: args.clip_grad_norm.map(clip).transpose()?,
        loss_scale: args.loss_scale.unwrap_or(LossScaling::of(dtype)),
    })
}

fn schedule(args: &ScheduleArgs, dataset: DatasetKind) -> Result<ScheduleConfig, ConfigError> {
    let epochs = args.epochs.unwrap_or(match dataset {
        DatasetKind::Cifar10 | DatasetKind::Cifar100 => 200,
        DatasetKind::ImageFolder => 90,
        DatasetKind::Shapes | DatasetKind::Synthetic => 5,
    });
    at_least("--epochs", epochs, 1)?;
    let kind = args.schedule.unwrap_or(ScheduleKind::Cosine);
    let is_one_cycle = kind == ScheduleKind::OneCycle;
    let schedule_epochs = args.schedule_epochs.map(|planned| at_least("--schedule-epochs", planned, 1)).transpose()?;
    if schedule_epochs.is_some() && !is_one_cycle && kind != ScheduleKind::Cosine {
        let remedy = match kind {
            ScheduleKind::Multistep => "leave it out; --milestones says when the rate falls",
            _ => "leave it out",
        };
        return Err(no_effect("--schedule-epochs", format!("with --schedule {kind}"), remedy));
    }
    let planned = schedule_epochs.unwrap_or(epochs);
    let (default_warmup, default_start) = match is_one_cycle {
        // The published shape: 30 % of the run rising, from 1/25 of the peak.
        true => (0.3 * planned as f64, 0.04),
        false => (if planned >= 5 { 1.0 } else { 0.0 }, 0.1),
    };
    let warmup_epochs = in_range(
        "--warmup-epochs",
        args.warmup_epochs.unwrap_or(default_warmup),
        format!(
            "{} 0 and less than the {planned} epochs of the schedule",
            if is_one_cycle { "above" } else { "at least" }
        ),
        |warmup| warmup < planned as f64 && (warmup > 0.0 || (warmup == 0.0 && !is_one_cycle)),
    )?;
    if warmup_epochs == 0.0 && args.warmup_start_factor.is_some() {
        return Err(no_effect("--warmup-start-factor", "without warmup", "leave it out or add --warmup-epochs 1"));
    }
    let warmup_start_factor =
        in_range("--warmup-start-factor", args.warmup_start_factor.unwrap_or(default_start), "0 to 1", |factor| {
            (0.0..=1.0).contains(&factor)
        })?;
    let course = course(args, kind, epochs)?;
    Ok(ScheduleConfig { epochs, schedule_epochs, warmup_epochs, warmup_start_factor, course })
}

fn course(args: &ScheduleArgs, kind: ScheduleKind, epochs: u64) -> Result<Course, ConfigError> {
    if kind != ScheduleKind::Multistep {
        for (option, is_given) in [("--milestones", args.milestones.is_some()), ("--gamma", args.gamma.is_some())] {
            if is_given {
                let because = format!("with --schedule {kind}");
                return Err(no_effect(option, because, "add --schedule multistep or leave it out"));
            }
        }
    }
    Ok(match kind {
        ScheduleKind::Constant => Course::Constant,
        ScheduleKind::Cosine => Course::Cosine,
        ScheduleKind::OneCycle => Course::OneCycle,
        ScheduleKind::Multistep => {
            // He et al. 2015, section 4.2: at 32k and 48k of 64k steps.
            let milestones = args.milestones.clone().unwrap_or_else(|| vec![epochs / 2, epochs * 3 / 4]);
            let ascend = milestones.windows(2).all(|pair| pair[0] < pair[1]);
            let inside = milestones.iter().all(|epoch| (1..epochs).contains(epoch));
            if !ascend || !inside || milestones.is_empty() {
                return Err(ConfigError::Invalid {
                    option: "--milestones",
                    expected: format!("ascending epochs from 1 and below the {epochs} of the run"),
                    got: milestones.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
                });
            }
            let gamma = in_range("--gamma", args.gamma.unwrap_or(0.1), "above 0", |gamma| gamma > 0.0)?;
            Course::Multistep { milestones, gamma }
        }
    })
}

fn run(args: &RunArgs, resume: bool) -> Result<RunConfig, ConfigError> {
    let zero_gamma = args.zero_gamma.unwrap_or(false);
    if zero_gamma && args.weights.is_some() {
        return Err(no_effect("--zero-gamma", "with --weights, which bring their own", "leave one of them out"));
    }
    let on_non_finite = match args.on_non_finite.unwrap_or(OnNonFiniteKind::Stop) {
        OnNonFiniteKind::Skip => OnNonFinite::Skip { limit: args.max_skipped_steps.unwrap_or(MAX_SKIPPED_STEPS) },
        OnNonFiniteKind::Stop if args.max_skipped_steps.is_some() => {
            return Err(no_effect("--max-skipped-steps", "without --on-non-finite skip", "add it, or leave this out"));
        }
        OnNonFiniteKind::Stop => OnNonFinite::Stop,
    };
    let cadence = |option, given: Option<u64>, default| at_least(option, given.unwrap_or(default), 1);
    Ok(RunConfig {
        seed: args.seed.unwrap_or(0),
        zero_gamma,
        weights: args.weights.clone(),
        output_dir: args.output_dir.clone(),
        resume,
        on_non_finite,
        eval_every_epochs: cadence("--eval-every-epochs", args.eval_every_epochs, 1)?,
        checkpoint_every_epochs: cadence("--checkpoint-every-epochs", args.checkpoint_every_epochs, 1)?,
        checkpoint_every_steps: args
            .checkpoint_every_steps
            .map(|steps| at_least("--checkpoint-every-steps", steps, 1))
            .transpose()?,
        keep_checkpoints: at_least("--keep-checkpoints", args.keep_checkpoints.unwrap_or(2), 1)?,
        log_every_steps: cadence("--log-every-steps", args.log_every_steps, 50)?,
        warmup_steps: args.warmup_steps.unwrap_or(5),
    })
}

pub(super) fn compute(args: &ComputeArgs) -> Result<ComputeConfig, ConfigError> {
    let built_in = DeviceChoice::built_in();
    let device = args.device.unwrap_or_else(DeviceChoice::preferred);
    if !built_in.contains(&device.backend()) {
        return Err(ConfigError::DeviceNotBuilt { device: device.to_string(), backend: device.backend(), built_in });
    }
    let config = ComputeConfig {
        device,
        input: args.input.unwrap_or_else(|| device.input()),
        kernels: args.kernels.unwrap_or(KernelsKind::Fused),
        dtype: args.dtype.unwrap_or(Dtype::F32),
        convolution: args.convolution.unwrap_or(ConvolutionKind::Auto),
        cpu: args.cpu.unwrap_or(CpuKind::Auto),
        threads: args.threads.map(|threads| at_least("--threads", threads, 1)).transpose()?,
    };
    let option = match config.dtype {
        Dtype::F32 => None,
        Dtype::Bf16 => Some("--dtype bf16"),
        Dtype::F16 => Some("--dtype f16"),
    };
    // burn's ndarray has no numbers of 16 bits.
    if let Some(option) = option
        && (config.kernels != KernelsKind::Fused || device == DeviceChoice::Ndarray)
    {
        return Err(ConfigError::Conflict {
            option,
            other: format!("--device {device} --kernels {}", config.kernels),
            remedy: "numbers of 16 bits need --device cuda or flex, and --kernels fused".to_owned(),
        });
    }
    instruction_set(config.cpu)?;
    Ok(config)
}

/// The instruction set that `--cpu` names.
///
/// # Errors
/// When this processor does not offer it.
pub(crate) fn instruction_set(cpu: CpuKind) -> Result<Isa, ConfigError> {
    let isa = match cpu {
        CpuKind::Auto => Isa::detect(),
        CpuKind::Avx512 => Isa::Avx512,
        CpuKind::Avx2 => Isa::Avx2Fma,
        CpuKind::Portable => Isa::Portable,
    };
    if isa.is_available() {
        return Ok(isa);
    }
    let offered: Vec<String> = Isa::available().map(|isa| format!("{isa:?}").to_lowercase()).collect();
    Err(ConfigError::Invalid {
        option: "--cpu",
        expected: format!("an instruction set of this processor ({})", offered.join(", ")),
        got: cpu.to_string(),
    })
}

fn is_share(value: f64) -> bool {
    (0.0..1.0).contains(&value)
}

pub(super) fn at_least<T: PartialOrd + ToString>(option: &'static str, value: T, least: T) -> Result<T, ConfigError> {
    if value < least {
        return Err(ConfigError::Invalid {
            option,
            expected: format!("at least {}", least.to_string()),
            got: value.to_string(),
        });
    }
    Ok(value)
}

/// A finite `value` that `accepts`.
pub(super) fn in_range(
    option: &'static str,
    value: f64,
    expected: impl Into<String>,
    accepts: impl Fn(f64) -> bool,
) -> Result<f64, ConfigError> {
    if !value.is_finite() || !accepts(value) {
        return Err(ConfigError::Invalid { option, expected: expected.into(), got: value.to_string() });
    }
    Ok(value)
}

pub(super) fn no_effect(
    option: impl Into<Cow<'static, str>>,
    because: impl Into<String>,
    remedy: impl Into<String>,
) -> ConfigError {
    ConfigError::NoEffect { option: option.into(), because: because.into(), remedy: remedy.into() }
}
