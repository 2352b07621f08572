//! Defaults and checks of the flags of synchronisation.
//!
//! In: flags, the number of ranks. Out: the flags with their gaps filled, [`SyncConfig`] and [`SyncMethod`] of them.
//! Invariant: what belongs to one method only lives inside that method.

use std::time::Duration;

use super::checks::{Filled, at_least, conflict, expect_needs, in_range, invalid, missing, within};
use super::error::ConfigError;
use crate::config::choices::LossScaling;
use crate::config::choices::{
    BatchNormKind, Compression, DeviceChoice, OnOff, PlacementKind, ReductionChoice, SyncKind,
    UpdateKind,
};
use crate::config::cli::{BatchArgs, SyncArgs};

/// Each has a slot of sums of its own.
const MOST_VIRTUAL_SHARDS: usize = 65_536;

/// Bytes of a MiB.
pub(super) const MIB: f64 = 1024.0 * 1024.0;

/// How the ranks' gradients or parameters become one, for those who make steps or predict them.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncConfig {
    /// What is brought together, and when.
    pub method: SyncMethod,
    /// Largest gradient bucket; `None`: as the size of the gradients suggests.
    pub bucket_cap_bytes: Option<usize>,
    /// Whether gradients travel beside the backward pass.
    pub overlap: bool,
    /// The GPU that sums where GPUs do, if `--device` tells its index; otherwise that of the rank's index on its node.
    pub gpu: Option<usize>,
    /// Where gradients become parameters.
    pub update: UpdateKind,
}

impl Default for SyncConfig {
    /// What no flags mean, on a processor.
    fn default() -> Self {
        let mut args = SyncArgs::default();
        args.fill(1, DeviceChoice::Flex)
            .expect("no flags contradict each other");
        Self::of(&args, DeviceChoice::Flex)
    }
}

/// What is brought together, and when.
#[derive(Debug, Clone, PartialEq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// Steps; `None` is without bound.
    pub bound: Option<u64>,
}

impl SyncConfig {
    /// What filled flags mean on `device`.
    pub fn of(args: &SyncArgs, device: DeviceChoice) -> Self {
        let gpu = match device {
            DeviceChoice::Cuda(gpu) if args.reduction == Some(ReductionChoice::Nccl) => gpu,
            _ => None,
        };
        Self {
            method: args.method(),
            bucket_cap_bytes: args.bucket_mib.map(|mib| (mib * MIB).round() as usize),
            overlap: args.overlap.filled() == OnOff::On,
            gpu,
            update: args.update.filled(),
        }
    }

    /// Whether one of `world_size` ranks is updated on its device: there is nobody to meet. NCCL is used where it was asked for.
    pub fn updates_on_device(&self, world_size: usize) -> bool {
        let has_to_do = match self.method {
            SyncMethod::Allreduce {
                reduction,
                compression,
                ..
            } => compression.is_some() || reduction == ReductionChoice::Nccl,
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
            Self::ParameterServer {
                asynchronous: None, ..
            } => SyncKind::ParameterServer,
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
            Self::ParameterServer {
                servers,
                placement: PlacementKind::Own,
                ..
            } => world_size - servers,
            _ => world_size,
        }
    }
}

impl SyncArgs {
    /// Fills the gaps for a world and a device, and refuses what contradicts itself.
    pub(super) fn fill(
        &mut self,
        world_size: usize,
        device: DeviceChoice,
    ) -> Result<(), ConfigError> {
        let kind = *self.sync.get_or_insert(SyncKind::Allreduce);
        reject_inapplicable(self, kind)?;
        match kind {
            SyncKind::Allreduce => self.fill_allreduce(world_size)?,
            SyncKind::ParameterServer | SyncKind::AsyncParameterServer => {
                self.fill_servers(world_size)?
            }
            SyncKind::LocalSgd | SyncKind::PostLocalSgd => self.fill_local_sgd(kind)?,
        }
        if let Some(mib) = &mut self.bucket_mib {
            in_range("--bucket-mib", *mib, "0.001 to 4096 MiB", |mib| {
                (0.001..=4096.0).contains(&mib)
            })?;
            *mib = (*mib * MIB).round() / MIB;
        }
        self.overlap.get_or_insert(OnOff::On);
        self.timeout = Some(self.timeout()?.as_secs());
        self.update.get_or_insert(device.update());
        Ok(())
    }

    fn fill_allreduce(&mut self, world_size: usize) -> Result<(), ConfigError> {
        match self
            .compress
            .take()
            .filter(|compression| compression.is_some())
        {
            None => _ = self.reduction.get_or_insert(ReductionChoice::Hierarchical),
            Some(compression) => {
                if let Some(reduction) = self.reduction {
                    return Err(conflict(
                        "--compress",
                        format!("--reduction {reduction}"),
                        "each compression has a sum of its own; give one of them",
                    ));
                }
                self.compress = Some(compression);
                if compression.has_warmup() {
                    self.compress_warmup_steps.get_or_insert(10);
                }
            }
        }
        if self.reduction == Some(ReductionChoice::Exact) {
            within(
                "--virtual-shards",
                *self.virtual_shards.get_or_insert(8),
                world_size..=MOST_VIRTUAL_SHARDS,
            )?;
        }
        Ok(())
    }

    fn fill_servers(&mut self, world_size: usize) -> Result<(), ConfigError> {
        let placement = *self.server_placement.get_or_insert(PlacementKind::Beside);
        let servers = at_least("--servers", *self.servers.get_or_insert(1), 1)?;
        let most = match placement {
            PlacementKind::Beside => world_size,
            PlacementKind::Own => world_size - 1,
        };
        if servers > most {
            return Err(invalid(
                "--servers",
                format!("at most {most} of {world_size} ranks with --server-placement {placement}"),
                servers,
            ));
        }
        Ok(())
    }

    fn fill_local_sgd(&mut self, kind: SyncKind) -> Result<(), ConfigError> {
        at_least("--every", *self.every.get_or_insert(8), 1)?;
        if kind == SyncKind::LocalSgd {
            return Ok(());
        }
        let from_step = self.from_step.ok_or_else(|| {
            missing(
                "--from-step",
                "post-local-sgd begins with steps that sum all gradients",
                "give their number, or --sync local-sgd",
            )
        })?;
        at_least("--from-step", from_step, 1)?;
        Ok(())
    }

    /// Refuses a sum on GPUs where this program or the device has none.
    pub(super) fn expect_offered(&self, device: DeviceChoice) -> Result<(), ConfigError> {
        if self.reduction != Some(ReductionChoice::Nccl) {
            return Ok(());
        }
        if !cfg!(feature = "nccl") {
            return Err(invalid(
                "--reduction",
                "mpi, ring, halving-doubling, hierarchical or exact, as this program was built without nccl (rebuild with \
                 --features cuda; without --reduction gradients are staged through host memory over MPI)",
                ReductionChoice::Nccl,
            ));
        }
        match device {
            DeviceChoice::Cuda(_) => Ok(()),
            _ => Err(conflict(
                "--reduction nccl",
                format!("--device {device}"),
                "it sums on GPUs; give --device cuda, or another reduction",
            )),
        }
    }

    /// What filled flags bring together, and when.
    pub fn method(&self) -> SyncMethod {
        let servers = |asynchronous| SyncMethod::ParameterServer {
            servers: self.servers.filled(),
            placement: self.server_placement.filled(),
            asynchronous,
        };
        match self.sync.filled() {
            SyncKind::Allreduce => match self.reduction {
                Some(ReductionChoice::Exact) => SyncMethod::Exact {
                    virtual_shards: self.virtual_shards.filled(),
                },
                reduction => SyncMethod::Allreduce {
                    reduction: reduction.unwrap_or(ReductionChoice::Hierarchical),
                    compression: self.compress.unwrap_or_default(),
                    compress_warmup_steps: self.compress_warmup_steps.unwrap_or(0),
                },
            },
            SyncKind::ParameterServer => servers(None),
            SyncKind::AsyncParameterServer => servers(Some(Staleness {
                bound: self.staleness,
            })),
            SyncKind::LocalSgd | SyncKind::PostLocalSgd => SyncMethod::LocalSgd {
                every: self.every.filled(),
                from_step: self.from_step.unwrap_or(0),
            },
        }
    }

    /// The longest wait that these flags allow, filled or not: a program starts before its whole configuration is known.
    ///
    /// # Errors
    /// When it is 0.
    pub fn timeout(&self) -> Result<Duration, ConfigError> {
        Ok(Duration::from_secs(at_least(
            "--timeout",
            self.timeout.unwrap_or(120),
            1,
        )?))
    }

    /// Refuses flags of a batch that the method cannot do, as they were typed.
    pub(super) fn expect_batch(&self, batch: &BatchArgs) -> Result<(), ConfigError> {
        self.expect_batch_norm(batch.batch_norm)?;
        match self.method() {
            SyncMethod::Exact { .. } if batch.grad_accum_steps.is_some_and(|steps| steps > 1) => {
                Err(conflict(
                    "--grad-accum-steps",
                    "--reduction exact",
                    "the virtual shards of a rank are its accumulation; give --virtual-shards",
                ))
            }
            SyncMethod::Exact { .. } if batch.batch_size_per_rank.is_some() => Err(conflict(
                "--batch-size-per-rank",
                "--reduction exact",
                "its batches must not depend on the number of ranks; give --global-batch-size",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses statistics over all ranks where they do not make their passes together, or must not depend on each other's order.
    pub(super) fn expect_batch_norm(
        &self,
        batch_norm: Option<BatchNormKind>,
    ) -> Result<(), ConfigError> {
        let syncs_norm = batch_norm == Some(BatchNormKind::Sync);
        match self.method() {
            SyncMethod::Exact { .. } if syncs_norm => Err(conflict(
                "--batch-norm sync",
                "--reduction exact",
                "statistics over all ranks are sums in the ranks' order; use local ones, which are those of a virtual shard",
            )),
            SyncMethod::LocalSgd { .. }
            | SyncMethod::ParameterServer {
                asynchronous: Some(_),
                ..
            } if syncs_norm => Err(conflict(
                "--batch-norm sync",
                format!("--sync {}", self.sync.filled()),
                "ranks that run apart cannot sum their statistics; use --batch-norm local",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses to leave out steps whose gradients overflow where ranks do not make them together.
    pub(super) fn expect_loss_scale(&self, scaling: LossScaling) -> Result<(), ConfigError> {
        match (self.sync.filled(), scaling) {
            (SyncKind::Allreduce, _) | (_, LossScaling::None | LossScaling::Fixed(_)) => Ok(()),
            (kind, LossScaling::Dynamic) => Err(conflict(
                "--loss-scale dynamic (the default of --dtype f16)",
                format!("--sync {kind}"),
                "only with --sync allreduce do all ranks leave out the same steps; use it, or a fixed --loss-scale \
                 such as 1024, or --dtype bf16",
            )),
        }
    }
}

/// Options of other methods than the chosen one.
fn reject_inapplicable(args: &SyncArgs, kind: SyncKind) -> Result<(), ConfigError> {
    use SyncKind::{Allreduce, AsyncParameterServer, LocalSgd, ParameterServer, PostLocalSgd};
    let is_exact = args.reduction == Some(ReductionChoice::Exact);
    let compresses = args.compress.is_some_and(Compression::has_warmup);
    let servers = [ParameterServer, AsyncParameterServer].as_slice();
    let rules = [
        (
            "--reduction",
            args.reduction.is_some(),
            kind == Allreduce,
            "--sync allreduce",
        ),
        (
            "--compress",
            args.compress.is_some(),
            kind == Allreduce,
            "--sync allreduce",
        ),
        (
            "--compress-warmup-steps",
            args.compress_warmup_steps.is_some(),
            compresses,
            "--compress powersgd or topk",
        ),
        (
            "--virtual-shards",
            args.virtual_shards.is_some(),
            is_exact,
            "--reduction exact",
        ),
        (
            "--servers",
            args.servers.is_some(),
            servers.contains(&kind),
            "--sync parameter-server",
        ),
        (
            "--server-placement",
            args.server_placement.is_some(),
            servers.contains(&kind),
            "--sync parameter-server",
        ),
        (
            "--staleness",
            args.staleness.is_some(),
            kind == AsyncParameterServer,
            "--sync async-parameter-server",
        ),
        (
            "--every",
            args.every.is_some(),
            [LocalSgd, PostLocalSgd].contains(&kind),
            "--sync local-sgd",
        ),
        (
            "--from-step",
            args.from_step.is_some(),
            kind == PostLocalSgd,
            "--sync post-local-sgd",
        ),
    ];
    expect_needs(rules)
}
