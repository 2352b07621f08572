//! Synchronisation as decided.
//!
//! In: flags, the number of ranks. Out: [`SyncConfig`]. Invariant: what belongs to one method only lives inside that method.

use std::path::PathBuf;
use std::time::Duration;

use distributed::BucketPlan;
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::parts::{BatchConfig, OnNonFinite, OptimizerConfig};
use super::resolve::{MIB, at_least, in_range, no_effect};
use crate::choices::{
    BatchNormKind, Compression, DeviceChoice, OnOff, PlacementKind, ReductionChoice, SyncKind, UpdateKind,
};
use crate::cli::{BatchArgs, SyncArgs};
use crate::loss_scale::LossScaling;

/// How the ranks' gradients or parameters become one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyncConfig {
    /// What is brought together, and when.
    pub method: SyncMethod,
    /// Largest gradient bucket.
    pub bucket_cap_bytes: usize,
    /// Whether gradients travel beside the backward pass.
    pub overlap: bool,
    /// Longest that a rank waits for another.
    pub timeout: Duration,
    /// File of the trace.
    pub trace: Option<PathBuf>,
    /// The GPU that sums where GPUs do, if `--device` tells its index; otherwise that of the rank's index on its node.
    pub gpu: Option<usize>,
    /// Where gradients become parameters.
    #[serde(default)]
    pub update: UpdateKind,
}

impl Default for SyncConfig {
    /// What no flags mean.
    fn default() -> Self {
        sync(&SyncArgs::default(), 1).expect("no flags contradict each other")
    }
}

/// What is brought together, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "sync", rename_all = "kebab-case")]
pub enum SyncMethod {
    /// Every step sums all gradients.
    Allreduce {
        /// How.
        reduction: ReductionChoice,
        /// What goes over the wire.
        compression: Compression,
        /// Steps sent uncompressed.
        compress_warmup_steps: u64,
    },
    /// Every step sums all gradients, to the same bits on any number of ranks.
    Exact {
        /// Parts of a global batch.
        virtual_shards: usize,
    },
    /// Servers hold the parameters and make the updates.
    ParameterServer {
        /// How many.
        servers: usize,
        /// Where they are.
        placement: PlacementKind,
        /// `None`: every update waits for all ranks. Otherwise ranks run apart by so many steps at most.
        asynchronous: Option<Staleness>,
    },
    /// Ranks update alone and average their parameters now and then.
    LocalSgd {
        /// Steps between two averagings.
        every: u64,
        /// Before this step every step sums all gradients.
        from_step: u64,
    },
}

/// How far ranks may run apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// Steps; `None` is without bound.
    pub bound: Option<u64>,
}

impl SyncConfig {
    /// Whether one of `world_size` ranks is updated on its device: there is nobody to meet. NCCL is used where it was asked for.
    pub fn updates_on_device(&self, world_size: usize) -> bool {
        let has_to_do = match self.method {
            SyncMethod::Allreduce { reduction, compression, .. } => {
                compression.is_some() || reduction == ReductionChoice::Nccl
            }
            _ => true,
        };
        self.update == UpdateKind::Device && world_size == 1 && !has_to_do
    }
}

impl SyncMethod {
    /// The choice without its details.
    pub fn kind(&self) -> SyncKind {
        match self {
            Self::Allreduce { .. } | Self::Exact { .. } => SyncKind::Allreduce,
            Self::ParameterServer { asynchronous: None, .. } => SyncKind::ParameterServer,
            Self::ParameterServer { .. } => SyncKind::AsyncParameterServer,
            Self::LocalSgd { from_step: 0, .. } => SyncKind::LocalSgd,
            Self::LocalSgd { .. } => SyncKind::PostLocalSgd,
        }
    }

    /// The number of parts that a global batch is computed in whatever the number of ranks, if there is such a one.
    pub fn virtual_shards(&self) -> Option<usize> {
        match self {
            Self::Exact { virtual_shards } => Some(*virtual_shards),
            _ => None,
        }
    }

    /// How many ranks of `world_size` train.
    pub fn num_workers(&self, world_size: usize) -> usize {
        match self {
            Self::ParameterServer { servers, placement: PlacementKind::Own, .. } => world_size - servers,
            _ => world_size,
        }
    }
}

/// The longest wait that these flags allow, for the start of a program whose whole configuration is not known yet.
///
/// # Errors
/// When it is 0.
pub fn starting_timeout(args: &SyncArgs) -> Result<Duration, ConfigError> {
    Ok(Duration::from_secs(at_least("--timeout", args.timeout.unwrap_or(120), 1)?))
}

pub(super) fn sync(args: &SyncArgs, world_size: usize) -> Result<SyncConfig, ConfigError> {
    let kind = args.sync.unwrap_or(SyncKind::Allreduce);
    refuse_strangers(args, kind)?;
    let method = match kind {
        SyncKind::Allreduce => allreduce(args, world_size)?,
        SyncKind::ParameterServer => servers(args, world_size, None)?,
        SyncKind::AsyncParameterServer => servers(args, world_size, Some(Staleness { bound: args.staleness }))?,
        SyncKind::LocalSgd => SyncMethod::LocalSgd { every: every(args)?, from_step: 0 },
        SyncKind::PostLocalSgd => SyncMethod::LocalSgd { every: every(args)?, from_step: from_step(args)? },
    };
    let mib = args.bucket_mib.unwrap_or(BucketPlan::DEFAULT_CAP_BYTES as f64 / MIB);
    let mib = in_range("--bucket-mib", mib, "0.001 to 4096 MiB", |mib| (0.001..=4096.0).contains(&mib))?;
    Ok(SyncConfig {
        method,
        bucket_cap_bytes: (mib * MIB).round() as usize,
        overlap: args.overlap.unwrap_or(OnOff::On) == OnOff::On,
        timeout: starting_timeout(args)?,
        trace: args.trace.clone(),
        gpu: None,
        update: args.update.unwrap_or_default(),
    })
}

/// What `args` say on `device`; a sum on GPUs needs one that computes.
pub(super) fn on_device(sync: SyncConfig, args: &SyncArgs, device: DeviceChoice) -> Result<SyncConfig, ConfigError> {
    let sync = SyncConfig { update: args.update.unwrap_or(device.update()), ..sync };
    match (&sync.method, device) {
        (SyncMethod::Allreduce { reduction: ReductionChoice::Nccl, .. }, DeviceChoice::Cuda(gpu)) => {
            Ok(SyncConfig { gpu, ..sync })
        }
        (SyncMethod::Allreduce { reduction: ReductionChoice::Nccl, .. }, _) => Err(ConfigError::Conflict {
            option: "--reduction nccl",
            other: format!("--device {device}"),
            remedy: "it sums on GPUs; give --device cuda, or another reduction".to_owned(),
        }),
        _ => Ok(sync),
    }
}

/// Refuses what the method cannot do with the batch.
pub(super) fn fits_batch(sync: &SyncConfig, batch: &BatchConfig, args: &BatchArgs) -> Result<(), ConfigError> {
    let conflict =
        |option, other: String, remedy: &str| Err(ConfigError::Conflict { option, other, remedy: remedy.to_owned() });
    let syncs_norm = batch.batch_norm == BatchNormKind::Sync;
    match sync.method {
        SyncMethod::Exact { .. } if args.grad_accum_steps.is_some() => conflict(
            "--grad-accum-steps",
            "--reduction exact".to_owned(),
            "the virtual shards of a rank are its accumulation; give --virtual-shards",
        ),
        SyncMethod::Exact { .. } if args.batch_size_per_rank.is_some() => conflict(
            "--batch-size-per-rank",
            "--reduction exact".to_owned(),
            "its batches must not depend on the number of ranks; give --global-batch-size",
        ),
        SyncMethod::Exact { .. } if syncs_norm => conflict(
            "--batch-norm sync",
            "--reduction exact".to_owned(),
            "statistics over all ranks are sums in the ranks' order; use local ones, which are those of a virtual shard",
        ),
        SyncMethod::LocalSgd { .. } | SyncMethod::ParameterServer { asynchronous: Some(_), .. } if syncs_norm => {
            conflict(
                "--batch-norm sync",
                format!("--sync {}", sync.method.kind()),
                "ranks that run apart cannot sum their statistics; use --batch-norm local",
            )
        }
        _ => Ok(()),
    }
}

/// Refuses what the method cannot do with the optimizer.
pub(super) fn fits_optimizer(sync: &SyncConfig, optimizer: &OptimizerConfig) -> Result<(), ConfigError> {
    match sync.method {
        SyncMethod::LocalSgd { .. } | SyncMethod::ParameterServer { .. } if optimizer.clip_grad_norm.is_some() => {
            Err(ConfigError::Conflict {
                option: "--clip-grad-norm",
                other: format!("--sync {}", sync.method.kind()),
                remedy: "only --sync allreduce has the norm of the whole mean gradient before the update".to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// Refuses to skip steps where ranks do not make them together.
pub(super) fn fits_skipping(sync: &SyncConfig, on_non_finite: OnNonFinite) -> Result<(), ConfigError> {
    match (sync.method.kind(), on_non_finite) {
        (SyncKind::Allreduce, _) | (_, OnNonFinite::Stop) => Ok(()),
        (kind, OnNonFinite::Skip { .. }) => Err(ConfigError::Conflict {
            option: "--on-non-finite skip",
            other: format!("--sync {kind}"),
            remedy: "only with --sync allreduce do all ranks know of a step before it is made".to_owned(),
        }),
    }
}

/// Refuses to leave out steps whose gradients overflow where ranks do not make them together.
pub(super) fn fits_loss_scale(sync: &SyncConfig, scaling: LossScaling) -> Result<(), ConfigError> {
    match (sync.method.kind(), scaling) {
        (SyncKind::Allreduce, _) | (_, LossScaling::None | LossScaling::Fixed(_)) => Ok(()),
        (kind, LossScaling::Dynamic) => Err(ConfigError::Conflict {
            option: "--loss-scale dynamic (the default of --dtype f16)",
            other: format!("--sync {kind}"),
            remedy:
                "only with --sync allreduce do all ranks leave out the same steps; use it, or a fixed --loss-scale \
                     such as 1024, or --dtype bf16"
                    .to_owned(),
        }),
    }
}

/// Options of other methods than the chosen one.
fn refuse_strangers(args: &SyncArgs, kind: SyncKind) -> Result<(), ConfigError> {
    use SyncKind::{Allreduce, AsyncParameterServer, LocalSgd, ParameterServer, PostLocalSgd};
    let is_exact = args.reduction == Some(ReductionChoice::Exact);
    let compresses = args.compress.is_some_and(Compression::has_warmup);
    let servers = [ParameterServer, AsyncParameterServer].as_slice();
    let rules: [(&'static str, bool, bool, &str); 9] = [
        ("--reduction", args.reduction.is_some(), kind == Allreduce, "--sync allreduce"),
        ("--compress", args.compress.is_some(), kind == Allreduce, "--sync allreduce"),
        ("--compress-warmup-steps", args.compress_warmup_steps.is_some(), compresses, "--compress powersgd or topk"),
        ("--virtual-shards", args.virtual_shards.is_some(), is_exact, "--reduction exact"),
        ("--servers", args.servers.is_some(), servers.contains(&kind), "--sync parameter-server"),
        ("--server-placement", args.server_placement.is_some(), servers.contains(&kind), "--sync parameter-server"),
        ("--staleness", args.staleness.is_some(), kind == AsyncParameterServer, "--sync async-parameter-server"),
        ("--every", args.every.is_some(), [LocalSgd, PostLocalSgd].contains(&kind), "--sync local-sgd"),
        ("--from-step", args.from_step.is_some(), kind == PostLocalSgd, "--sync post-local-sgd"),
    ];
    for (option, is_given, has_effect, needs) in rules {
        if is_given && !has_effect {
            return Err(no_effect(option, format!("without {needs}"), "add that or leave this out"));
        }
    }
    Ok(())
}

fn allreduce(args: &SyncArgs, world_size: usize) -> Result<SyncMethod, ConfigError> {
    let reduction = args.reduction.unwrap_or(ReductionChoice::Hierarchical);
    let compression = args.compress.unwrap_or_default();
    if compression.is_some() && args.reduction.is_some() {
        return Err(ConfigError::Conflict {
            option: "--compress",
            other: format!("--reduction {reduction}"),
            remedy: "each compression has a sum of its own; give one of them".to_owned(),
        });
    }
    if reduction == ReductionChoice::Nccl && !cfg!(feature = "nccl") {
        return Err(ConfigError::Invalid {
            option: "--reduction",
            expected: "mpi, ring, halving-doubling, hierarchical or exact, as this program was built without nccl (rebuild with \
                       --features cuda; without --reduction gradients are staged through host memory over MPI)"
                .to_owned(),
            got: reduction.to_string(),
        });
    }
    if reduction == ReductionChoice::Exact {
        let virtual_shards = at_least("--virtual-shards", args.virtual_shards.unwrap_or(8), world_size)?;
        return Ok(SyncMethod::Exact { virtual_shards });
    }
    let compress_warmup_steps = match compression.has_warmup() {
        true => args.compress_warmup_steps.unwrap_or(10),
        false => 0,
    };
    Ok(SyncMethod::Allreduce { reduction, compression, compress_warmup_steps })
}

fn servers(args: &SyncArgs, world_size: usize, asynchronous: Option<Staleness>) -> Result<SyncMethod, ConfigError> {
    let placement = args.server_placement.unwrap_or(PlacementKind::Beside);
    let servers = at_least("--servers", args.servers.unwrap_or(1), 1)?;
    let most = match placement {
        PlacementKind::Beside => world_size,
        PlacementKind::Own => world_size - 1,
    };
    if servers > most {
        return Err(ConfigError::Invalid {
            option: "--servers",
            expected: format!("at most {most} of {world_size} ranks with --server-placement {placement}"),
            got: servers.to_string(),
        });
    }
    Ok(SyncMethod::ParameterServer { servers, placement, asynchronous })
}

fn every(args: &SyncArgs) -> Result<u64, ConfigError> {
    at_least("--every", args.every.unwrap_or(8), 1)
}

fn from_step(args: &SyncArgs) -> Result<u64, ConfigError> {
    let from_step = args.from_step.ok_or_else(|| ConfigError::Missing {
        option: "--from-step",
        because: "post-local-sgd begins with steps that sum all gradients".to_owned(),
        remedy: "give their number, or --sync local-sgd".to_owned(),
    })?;
    at_least("--from-step", from_step, 1)
}

impl SyncConfig {
    pub(super) fn to_args(&self) -> SyncArgs {
        let on_off = |on| if on { OnOff::On } else { OnOff::Off };
        let mut args = SyncArgs {
            sync: Some(self.method.kind()),
            overlap: Some(on_off(self.overlap)),
            bucket_mib: Some(self.bucket_cap_bytes as f64 / MIB),
            timeout: Some(self.timeout.as_secs()),
            trace: self.trace.clone(),
            update: Some(self.update),
            ..SyncArgs::default()
        };
        match self.method {
            SyncMethod::Allreduce { reduction, compression, .. } if !compression.is_some() => {
                args.reduction = Some(reduction);
            }
            SyncMethod::Allreduce { compression, compress_warmup_steps, .. } => {
                args.compress = Some(compression);
                args.compress_warmup_steps = compression.has_warmup().then_some(compress_warmup_steps);
            }
            SyncMethod::Exact { virtual_shards } => {
                args.reduction = Some(ReductionChoice::Exact);
                args.virtual_shards = Some(virtual_shards);
            }
            SyncMethod::ParameterServer { servers, placement, asynchronous } => {
                args.servers = Some(servers);
                args.server_placement = Some(placement);
                args.staleness = asynchronous.and_then(|staleness| staleness.bound);
            }
            SyncMethod::LocalSgd { every, from_step } => {
                args.every = Some(every);
                args.from_step = (from_step > 0).then_some(from_step);
            }
        }
        args
    }
}
