//! The section `[sync]`: the combination of gradients or parameters of all ranks.
//!
//! In: [`SyncArgs`], the number of ranks. Out: [`SyncSection`].
//! Invariant: an option of one method exists only in that method.

use super::error::{ConfigError, conflict, invalid, missing, within};
use crate::config::choices::{
    BatchNormKind, Compression, DeviceChoice, LossScaling, OnOff, ReductionChoice, ServerPlacement,
    SyncKind, UpdateKind,
};
use crate::config::cli::SyncArgs;
use distributed::gradients::CompressionKind;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Largest number of virtual shards, because each shard has its own slot of sums.
const MAX_VIRTUAL_SHARDS: usize = 65_536;
/// Longest wait for another rank, seconds, unless a flag sets it.
const DEFAULT_TIMEOUT: u64 = 120;
/// Bytes of a MiB.
const MIB: f64 = 1024.0 * 1024.0;

/// Synchronisation of the gradients or parameters of all ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "SyncArgs")]
pub struct SyncSection {
    /// Method with its options.
    pub method: SyncMethod,
    pub overlap: OnOff,
    pub bucket_mib: Option<f64>,
    pub update: UpdateKind,
    /// Longest wait for another rank, seconds.
    pub timeout: u64,
    pub trace: Option<PathBuf>,
}

impl Default for SyncSection {
    /// Returns the synchronisation without flags on a CPU.
    fn default() -> Self {
        Self {
            method: SyncMethod::Allreduce {
                reduction: Some(ReductionChoice::Hierarchical),
                compression: Compression::default(),
                compress_warmup_steps: 0,
            },
            overlap: OnOff::On,
            bucket_mib: None,
            update: UpdateKind::Host,
            timeout: DEFAULT_TIMEOUT,
            trace: None,
        }
    }
}

/// A method of synchronisation with its options.
#[derive(Debug, Clone, PartialEq)]
pub enum SyncMethod {
    /// Every step sums all gradients.
    Allreduce {
        /// Algorithm of the sum, unless gradients are compressed; `None`: NCCL if the ranks' GPUs
        /// update and it loads on all ranks, otherwise hierarchical.
        reduction: Option<ReductionChoice>,
        /// Encoding of the gradients.
        compression: Compression,
        /// Number of first steps sent uncompressed.
        compress_warmup_steps: u64,
    },
    /// Every step sums all gradients; the bits are the same on any number of ranks.
    Exact {
        /// Number of parts of a global batch.
        virtual_shards: usize,
    },
    /// Servers hold and update the parameters.
    ParameterServer {
        /// Number of servers.
        servers: usize,
        /// The ranks that are servers.
        placement: ServerPlacement,
        /// Bound on staleness; `None`: every update waits for all ranks.
        asynchronous: Option<Staleness>,
    },
    /// Ranks update independently and average their parameters at intervals.
    LocalSgd {
        /// Number of steps between two averages.
        every: u64,
        /// First local step; earlier steps sum all gradients.
        from_step: u64,
    },
}

/// Bound on the distance between ranks in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// Number of steps; `None` means no bound.
    pub bound: Option<u64>,
}

impl From<SyncSection> for SyncArgs {
    fn from(section: SyncSection) -> Self {
        let args = Self {
            sync: Some(section.method.kind()),
            overlap: Some(section.overlap),
            bucket_mib: section.bucket_mib,
            update: Some(section.update),
            timeout: Some(section.timeout),
            trace: section.trace,
            ..Self::default()
        };
        match section.method {
            SyncMethod::Allreduce {
                compression,
                compress_warmup_steps,
                ..
            } if compression.is_some() => Self {
                compress: Some(compression),
                compress_warmup_steps: compression.has_warmup().then_some(compress_warmup_steps),
                ..args
            },
            SyncMethod::Allreduce { reduction, .. } => Self { reduction, ..args },
            SyncMethod::Exact { virtual_shards } => Self {
                reduction: Some(ReductionChoice::Exact),
                virtual_shards: Some(virtual_shards),
                ..args
            },
            SyncMethod::ParameterServer {
                servers,
                placement,
                asynchronous,
            } => Self {
                servers: Some(servers),
                server_placement: Some(placement),
                staleness: asynchronous.and_then(|staleness| staleness.bound),
                ..args
            },
            SyncMethod::LocalSgd { every, from_step } => Self {
                every: Some(every),
                from_step: Some(from_step).filter(|step| *step > 0),
                ..args
            },
        }
    }
}

impl SyncSection {
    /// Returns the largest gradient bucket; `None`: derived from the size of the gradients.
    pub fn bucket_cap_bytes(&self) -> Option<usize> {
        self.bucket_mib.map(|mib| (mib * MIB).round() as usize)
    }

    /// Returns the longest wait for another rank.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Returns the option that needs gradients in main memory, if there is one. `syncs_norm`: norm
    /// statistics are summed over several ranks.
    pub(crate) fn needs_main_memory(&self, syncs_norm: bool) -> Option<String> {
        match self.method {
            SyncMethod::Allreduce { compression, .. }
                if compression.is_some() && compression.0 != CompressionKind::Bf16 =>
            {
                Some(format!("--compress {compression}"))
            }
            SyncMethod::Allreduce { .. } => syncs_norm.then(|| "--batch-norm sync".to_owned()),
            SyncMethod::Exact { .. } => Some("--reduction exact".to_owned()),
            _ => Some(format!("--sync {}", self.method.kind())),
        }
    }

    /// Decides the place of the update: main memory if an option needs it and no place was typed.
    pub(super) fn decide_update(
        &mut self,
        typed: Option<UpdateKind>,
        needs_main_memory: Option<String>,
    ) -> Result<(), ConfigError> {
        match needs_main_memory {
            Some(option) if typed == Some(UpdateKind::Device) => Err(conflict(
                option,
                "--update device",
                "it needs gradients in main memory; give --update host",
            )),
            Some(_) => {
                self.update = UpdateKind::Host;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Rejects NCCL if this program or the device lacks it.
    pub(super) fn expect_offered(&self, device: DeviceChoice) -> Result<(), ConfigError> {
        let SyncMethod::Allreduce {
            reduction: Some(reduction @ ReductionChoice::Nccl),
            ..
        } = self.method
        else {
            return Ok(());
        };
        if !cfg!(feature = "nccl") {
            return Err(invalid(
                "--reduction",
                "mpi, ring, halving-doubling, hierarchical or exact, as this program was built without nccl (rebuild with \
                 --features cuda; without --reduction gradients are staged through host memory over MPI)",
                reduction,
            ));
        }
        match device {
            DeviceChoice::Cuda(_) => Ok(()),
            _ => Err(conflict(
                "--reduction nccl",
                format!("--device {device}"),
                "NCCL sums on GPUs; give --device cuda, or another reduction",
            )),
        }
    }

    /// Rejects options of other sections that require closer cooperation between ranks.
    pub(super) fn expect_compatible(
        &self,
        batch_norm: BatchNormKind,
        scaling: LossScaling,
    ) -> Result<(), ConfigError> {
        let kind = self.method.kind();
        let sync = format!("--sync {kind}");
        let syncs_norm = batch_norm == BatchNormKind::Sync;
        let waits = matches!(kind, SyncKind::Allreduce | SyncKind::ParameterServer);
        if syncs_norm && self.method.virtual_shards().is_some() {
            return Err(conflict(
                "--batch-norm sync",
                "--reduction exact",
                "statistics over all ranks are sums in the order of the ranks; use --batch-norm local, \
                 the statistics of a virtual shard",
            ));
        }
        if syncs_norm && !waits {
            return Err(conflict(
                "--batch-norm sync",
                sync,
                "ranks that run independently cannot sum their statistics; use --batch-norm local",
            ));
        }
        if scaling == LossScaling::Dynamic && kind != SyncKind::Allreduce {
            return Err(conflict(
                "--loss-scale dynamic (the default of --dtype f16)",
                sync,
                "only with --sync allreduce do all ranks skip the same steps; use it, or a fixed --loss-scale \
                 such as 1024, or --dtype bf16",
            ));
        }
        Ok(())
    }
}

impl SyncMethod {
    /// Returns the choice without its options.
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

    /// Returns the number of parts of a global batch, if it is independent of the number of ranks.
    pub fn virtual_shards(&self) -> Option<usize> {
        match self {
            Self::Exact { virtual_shards } => Some(*virtual_shards),
            _ => None,
        }
    }

    /// Returns the encoding of the gradients.
    pub(super) fn compression(&self) -> Compression {
        match self {
            Self::Allreduce { compression, .. } => *compression,
            _ => Compression::default(),
        }
    }

    /// Returns the number of training ranks in a world of `world_size` ranks.
    pub fn num_workers(&self, world_size: usize) -> usize {
        match self {
            Self::ParameterServer {
                servers,
                placement: ServerPlacement::Own,
                ..
            } => world_size - servers,
            _ => world_size,
        }
    }
}

impl SyncArgs {
    /// Applies the defaults for a world and a device and rejects contradictions.
    pub(super) fn decide(
        self,
        world_size: usize,
        device: DeviceChoice,
    ) -> Result<SyncSection, ConfigError> {
        let every = self.every.unwrap_or(8);
        let method = match self.sync.unwrap_or(SyncKind::Allreduce) {
            SyncKind::Allreduce => self.allreduce(world_size, device)?,
            SyncKind::ParameterServer => self.servers(world_size, None)?,
            SyncKind::AsyncParameterServer => {
                let bound = self.staleness;
                self.servers(world_size, Some(Staleness { bound }))?
            }
            SyncKind::LocalSgd => SyncMethod::LocalSgd {
                every,
                from_step: 0,
            },
            SyncKind::PostLocalSgd => SyncMethod::LocalSgd {
                every,
                from_step: self.from_step.ok_or_else(|| {
                    missing(
                        "--from-step",
                        "post-local-sgd begins with steps that sum all gradients",
                        "give their number, or --sync local-sgd",
                    )
                })?,
            },
        };
        if let SyncMethod::Allreduce { compression, .. } = method
            && compression.0 == CompressionKind::Bf16
            && !device.has_16_bits()
            && self.update == Some(UpdateKind::Device)
        {
            return Err(conflict(
                "--compress bf16",
                format!("--update device --device {device}"),
                "numbers of 16 bits need --device cuda or flex; or remove --update device",
            ));
        }
        Ok(SyncSection {
            method,
            overlap: self.overlap.unwrap_or(OnOff::On),
            // Round to whole bytes.
            bucket_mib: self.bucket_mib.map(|mib| (mib * MIB).round() / MIB),
            update: self.update.unwrap_or(device.update()),
            timeout: timeout(self.timeout)?.as_secs(),
            trace: self.trace,
        })
    }

    fn allreduce(
        &self,
        world_size: usize,
        device: DeviceChoice,
    ) -> Result<SyncMethod, ConfigError> {
        let compression = self.compress.unwrap_or_default();
        match self.reduction {
            Some(reduction) if compression.is_some() => Err(conflict(
                "--compress",
                format!("--reduction {reduction}"),
                "each compression has its own sum; give one of them",
            )),
            Some(ReductionChoice::Exact) => Ok(SyncMethod::Exact {
                virtual_shards: within(
                    "--virtual-shards",
                    self.virtual_shards.unwrap_or(8),
                    world_size..=MAX_VIRTUAL_SHARDS,
                )?,
            }),
            reduction => Ok(SyncMethod::Allreduce {
                reduction: reduction.or(device.reduction()),
                compression,
                compress_warmup_steps: match compression.has_warmup() {
                    true => self.compress_warmup_steps.unwrap_or(10),
                    false => 0,
                },
            }),
        }
    }

    fn servers(
        &self,
        world_size: usize,
        asynchronous: Option<Staleness>,
    ) -> Result<SyncMethod, ConfigError> {
        let placement = self.server_placement.unwrap_or(ServerPlacement::Beside);
        let servers = self.servers.unwrap_or(1);
        let most = match placement {
            ServerPlacement::Beside => world_size,
            ServerPlacement::Own => world_size - 1,
        };
        if servers > most {
            return Err(invalid(
                "--servers",
                format!("at most {most} of {world_size} ranks with --server-placement {placement}"),
                servers,
            ));
        }
        Ok(SyncMethod::ParameterServer {
            servers,
            placement,
            asynchronous,
        })
    }
}

/// Returns the longest wait for another rank, by default 120 s. A program needs it before its whole
/// configuration is known.
///
/// # Errors
/// If the timeout is 0.
pub fn timeout(typed: Option<u64>) -> Result<Duration, ConfigError> {
    match typed.unwrap_or(DEFAULT_TIMEOUT) {
        0 => Err(invalid("--timeout", "a whole number from 1", 0)),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}
