//! Facts of a rank, gathered by all ranks together.
//!
//! In: the world, a configuration. Out: [`RankFacts`] of all ranks, on every rank.
//! Invariant: an error of one rank is gathered as a fact. Only a failed collective ends the
//! examination.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use datasets::{DatasetError, ImageSamples, Samples, Split};
use distributed::communicator::{Launcher, check_place, check_world_size, mpi_library};
use distributed::{Communicator, ROOT};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::machine::{self, GpuFacts, InterfaceFacts, MemoryFacts, NcclFacts, ProcessorFacts};
use super::network::{self, SumFacts};
use super::storage::{self, OutputFacts};
use crate::config::ComputeSection;
use crate::config::{DoctorConfig, instruction_set};
use crate::measure::clock_offset::ClockOffset;
use crate::measure::gather;
use crate::measure::report::Reporter;
use crate::measure::timer::seconds_since_1970;
use crate::model::data;
use crate::world::ranks::World;

/// Timeout for root's file to appear on another node. NFS shows new files seconds later.
const LOOK_FOR: Duration = Duration::from_secs(5);

/// Facts of one rank. An unavailable fact is an error with the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFacts {
    pub(super) place: PlaceFacts,
    pub(super) program: ProgramFacts,
    pub(super) processors: ProcessorFacts,
    pub(super) compute: Result<ComputeFacts, String>,
    pub(super) gpus: GpuFacts,
    /// NCCL; present only on the first rank of a node that computes on a GPU.
    pub(super) nccl: Option<NcclFacts>,
    pub(super) memory: MemoryFacts,
    /// Number of packages with readable energy.
    pub(super) energy: Result<usize, String>,
    pub(super) interfaces: Vec<InterfaceFacts>,
    pub(super) sums: Vec<SumFacts>,
    /// Offset of root's wall clock.
    pub(super) clock: ClockOffset,
    pub(super) data: Result<DataFacts, DataProblem>,
    /// Output directory; present only on root.
    pub(super) output: Option<OutputFacts>,
    /// True if root's file in the output directory is visible.
    ///
    /// Present only on the first rank of every other node.
    pub(super) sees_output: Option<bool>,
}

/// Place of a rank according to MPI and to its launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlaceFacts {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: usize,
    pub(super) local_size: usize,
    pub(super) node: String,
    /// Launcher and its number of tasks.
    pub(super) launcher: Option<(String, usize)>,
    /// Disagreement between launcher and MPI, and its remedy.
    pub(super) complaint: Option<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramFacts {
    pub(super) version: String,
    pub(super) commit: String,
    /// SHA-256 of the executable.
    pub(super) executable: Result<String, String>,
    /// Name and version of the MPI library.
    pub(super) library: String,
    /// True if one thread may communicate while another computes.
    pub(super) supports_threads: bool,
    pub(super) has_mpi: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ComputeFacts {
    /// Backend with the index of the device.
    pub(super) device: String,
    pub(super) is_gpu: bool,
    pub(super) threads: usize,
    pub(super) instruction_set: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DataFacts {
    pub(super) name: String,
    pub(super) splits: Vec<SplitFacts>,
    /// Notes of the scan, such as skipped images.
    pub(super) notes: Vec<String>,
}

/// Reason why a rank cannot read the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DataProblem {
    pub(super) text: String,
    /// True if a file or folder is absent.
    pub(super) is_missing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SplitFacts {
    /// `train`, `val` or `test`.
    pub(super) name: String,
    pub(super) num_images: usize,
    /// SHA-256.
    pub(super) checksum: String,
}

/// Gathers the facts of all ranks.
/// Collective: all ranks.
pub fn examine(config: &DoctorConfig, world: &World) -> Result<Vec<RankFacts>> {
    let communicator = &world.communicator;
    let topology = communicator.topology();
    let compute = compute(&config.compute, world);
    let program = program(&**communicator);
    let data = data(config, &**communicator)?;
    let sums = network::sums(communicator)?;
    let clock = ClockOffset::measure(&**communicator, seconds_since_1970)?;

    let (output, token) = match world.is_root() {
        true => {
            let (facts, token) = storage::examine(&config.output_dir);
            (Some(facts), token)
        }
        false => (None, None),
    };
    let path = token
        .as_ref()
        .map(|token| token.path().to_string_lossy().into_owned());
    let path = gather::from_root(&**communicator, path.unwrap_or_default().as_bytes())?;
    let looks = topology.node_index != 0 && topology.local_rank == 0 && !path.is_empty();
    let path = String::from_utf8_lossy(&path).into_owned();
    let sees_output =
        looks.then(|| storage::sees(Path::new(&path), LOOK_FOR.min(config.timeout / 2)));
    let is_gpu = compute.as_ref().is_ok_and(|compute| compute.is_gpu);
    let examines_gpus = topology.local_rank == 0 && is_gpu;
    let own = RankFacts {
        place: place(&**communicator),
        program,
        processors: machine::processors(),
        compute,
        gpus: machine::gpus(),
        nccl: examines_gpus.then(machine::nccl),
        memory: machine::memory(),
        energy: machine::energy(),
        interfaces: machine::interfaces(),
        sums,
        clock,
        data,
        output,
        sees_output,
    };
    let all = communicator.all_gather(&serde_json::to_vec(&own)?)?;
    drop(token);
    all.iter()
        .enumerate()
        .map(|(rank, bytes)| {
            serde_json::from_slice(bytes).with_context(|| format!("facts of rank {rank}"))
        })
        .collect()
}

/// Returns true for a process without other ranks if it is not the first of its launcher's tasks.
///
/// The first task reports for all tasks.
pub fn is_follower_without_world(communicator: &dyn Communicator) -> bool {
    let launcher = Launcher::detect_from_environment().ok().flatten();
    let is_follower = launcher.is_some_and(|launcher| {
        launcher.num_tasks > 1 && launcher.rank.is_some_and(|rank| rank != ROOT)
    });
    communicator.world_size() == 1 && is_follower
}

fn place(communicator: &dyn Communicator) -> PlaceFacts {
    let topology = communicator.topology();
    let launcher = Launcher::detect_from_environment();
    let refusal = match &launcher {
        Ok(launcher) => check_world_size(
            launcher.as_ref(),
            topology.world_size,
            cfg!(feature = "mpi"),
        )
        .and_then(|()| check_place(launcher.as_ref(), topology))
        .err(),
        Err(error) => Some(error.clone()),
    };
    let complaint = refusal.map(|refusal| {
        let text = refusal.to_string();
        let (found, remedy) = text
            .split_once(". ")
            .unwrap_or((&text, "Start all ranks with one launcher."));
        (found.to_owned(), remedy.to_owned())
    });
    let launcher = launcher.ok().flatten();
    PlaceFacts {
        rank: topology.rank,
        world_size: topology.world_size,
        local_rank: topology.local_rank,
        local_size: topology.local_size,
        node: topology.node.clone(),
        launcher: launcher.map(|launcher| (launcher.name.to_owned(), launcher.num_tasks)),
        complaint,
    }
}

fn program(communicator: &dyn Communicator) -> ProgramFacts {
    ProgramFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        executable: executable_sha256().map_err(|error| error.to_string()),
        library: mpi_library(),
        supports_threads: communicator.supports_threads(),
        has_mpi: cfg!(feature = "mpi"),
    }
}

fn executable_sha256() -> io::Result<String> {
    let mut file = File::open("/proc/self/exe")?;
    let mut digest = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{:x}", digest.finalize())),
            length => digest.update(&piece[..length]),
        }
    }
}

fn compute(config: &ComputeSection, world: &World) -> Result<ComputeFacts, String> {
    let (_, threads) = world
        .prepare_compute(config)
        .map_err(|error| format!("{error:#}"))?;
    let instruction_set = instruction_set(config.cpu).map_err(|error| error.to_string())?;
    Ok(ComputeFacts {
        device: config.device.to_string(),
        is_gpu: config.device.backend() == "cuda",
        threads,
        instruction_set: format!("{instruction_set:?}"),
    })
}

/// Opens the data set.
/// Collective: the ranks of a node share checksums.
fn data(
    config: &DoctorConfig,
    communicator: &dyn Communicator,
) -> Result<Result<DataFacts, DataProblem>> {
    let quiet = Reporter::new(false);
    let no_class_names = || Ok(None);
    let splits = data::open(
        &config.data,
        &config.train_split,
        0,
        no_class_names,
        communicator,
        &quiet,
    );
    let splits = splits.map(|splits| ImageSamples::splits(splits, false));
    let opened: Vec<(Split, &Arc<ImageSamples>)> = match &splits {
        Ok(splits) => Split::ALL
            .into_iter()
            .filter_map(|split| Some((split, splits.get(split)?)))
            .collect(),
        Err(_) => Vec::new(),
    };
    let to_share: Vec<&Arc<ImageSamples>> = opened.iter().map(|(_, samples)| *samples).collect();
    data::share_checksums(&to_share, config.data.folder(), communicator)?;
    let facts = |(split, samples): &(Split, &Arc<ImageSamples>)| SplitFacts {
        name: split.to_string(),
        num_images: samples.len(),
        checksum: samples.checksum(),
    };
    let of_splits = opened.iter().map(facts).collect();
    Ok(match &splits {
        Ok(splits) => Ok(DataFacts {
            name: splits.train.name().trim_end_matches(" train").to_owned(),
            splits: of_splits,
            notes: data::notes(splits),
        }),
        Err(error) => Err(DataProblem {
            text: format!("{error:#}"),
            is_missing: matches!(error.downcast_ref(), Some(DatasetError::Missing { .. })),
        }),
    })
}
