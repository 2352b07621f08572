//! What a rank finds out, and the examination that all ranks make together.
//!
//! In: the world, a configuration. Out: [`RankFacts`] of all ranks, on every rank.
//! Invariant: a finding that is an error travels as a fact; only a collective that fails ends the examination.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use datasets::{ImageDataset, Split};
use distributed::{
    Communicator, ROOT,
    communicator::Topology,
    launch::{Launcher, check_place, check_world_size, mpi_library},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::gradients::{self, GradientFacts};
use super::machine::{self, GpuFacts, InterfaceFacts, MemoryFacts, ProcessorFacts};
use super::network::{self, SumFacts};
use super::storage::{self, OutputFacts};
use crate::config::ComputeSection;
use crate::config::cli::environment;
use crate::config::{DoctorConfig, instruction_set};
use crate::measure::clock_offset::ClockOffset;
use crate::measure::gather;
use crate::measure::report::Reporter;
use crate::measure::timer::seconds_since_1970;
use crate::model::data;
use crate::world::ranks::World;

/// Longest wait for root's file on another node; NFS may tell of it seconds later.
const LOOK_FOR: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFacts {
    pub place: PlaceFacts,
    pub program: ProgramFacts,
    pub processors: ProcessorFacts,
    /// What it computes on, or why it cannot.
    pub compute: Result<ComputeFacts, String>,
    pub gpus: GpuFacts,
    /// Ways of gradients between GPUs; for the first rank of a node to say, where it computes on one.
    pub gradients: Option<GradientFacts>,
    pub memory: MemoryFacts,
    /// Packages whose energy it can read, or why it cannot.
    pub energy: Result<usize, String>,
    /// Ways to other nodes.
    pub interfaces: Vec<InterfaceFacts>,
    pub sums: Vec<SumFacts>,
    /// Root's wall clock beside its own.
    pub clock: ClockOffset,
    /// The data set, or why there is none.
    pub data: Result<DataFacts, String>,
    /// The output directory; root's to examine.
    pub output: Option<OutputFacts>,
    /// Whether root's file in the output directory is seen; for the first rank of each other node to say.
    pub sees_output: Option<bool>,
}

/// Where a rank is, by MPI and by its launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceFacts {
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: usize,
    pub local_size: usize,
    pub node: String,
    /// The launcher, if there is one, with its number of tasks.
    pub launcher: Option<(String, usize)>,
    /// How the launcher disagrees with MPI.
    pub complaint: Option<Complaint>,
}

/// Something wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complaint {
    pub found: String,
    pub remedy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFacts {
    pub version: String,
    /// Commit it was built from.
    pub commit: String,
    /// SHA-256 of the executable, or why it cannot be read.
    pub executable: Result<String, String>,
    /// Name and version of the MPI library, `none` without one.
    pub library: String,
    /// Whether one thread may communicate while another computes.
    pub supports_threads: bool,
    /// Whether MPI is built in.
    pub has_mpi: bool,
}

/// What a rank computes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeFacts {
    /// The backend, with the index of a device that was asked for.
    pub device: String,
    /// Whether it is a GPU.
    pub is_gpu: bool,
    pub threads: usize,
    /// Instruction set of our own kernels.
    pub instruction_set: String,
}

/// The data set as a rank read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFacts {
    pub name: String,
    /// Those that are there.
    pub splits: Vec<SplitFacts>,
}

/// A split as a rank read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitFacts {
    /// `train`, `val` or `test`.
    pub name: String,
    pub num_images: usize,
    /// SHA-256.
    pub checksum: String,
}

/// Finds out, on all ranks together.
/// Collective: all ranks.
pub fn examine(config: &DoctorConfig, world: &World) -> Result<Vec<RankFacts>> {
    let communicator = &world.communicator;
    let topology = communicator.topology();
    let compute = compute(&config.compute, world);
    let program = program(&**communicator);
    let data = data(config, &**communicator)?;
    let sums = network::sums(communicator)?;
    let clock = ClockOffset::measure(&**communicator, seconds_since_1970)?;

    let (output, token) = if world.is_root() {
        let (facts, token) = storage::examine(&config.output_dir);
        (Some(facts), token)
    } else {
        (None, None)
    };
    let own = token
        .as_ref()
        .map(|token: &storage::OwnFile| token.path().to_string_lossy().into_owned());
    let roots = gather::from_root(&**communicator, own.unwrap_or_default().as_bytes())?;
    let looks = topology.node_index != 0 && topology.local_rank == 0 && !roots.is_empty();
    let path = String::from_utf8_lossy(&roots).into_owned();
    let sees_output =
        looks.then(|| storage::sees(Path::new(&path), LOOK_FOR.min(config.timeout / 2)));

    let speaks_of_gpus =
        topology.local_rank == 0 && compute.as_ref().is_ok_and(|compute| compute.is_gpu);
    let gradients = speaks_of_gpus.then(|| gradients::examine(&program.library, environment));
    let own = RankFacts {
        place: place(&**communicator),
        program,
        processors: machine::processors(),
        compute,
        gpus: machine::gpus(),
        gradients,
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

/// Whether this process is a world of one that its launcher started as one of several, and not as the first of them: the first
/// speaks for all.
pub fn stands_alone_beside_others(communicator: &dyn Communicator) -> bool {
    let launcher = Launcher::detect_from_environment().ok().flatten();
    communicator.world_size() == 1
        && launcher.is_some_and(|launcher| {
            launcher.num_tasks > 1 && launcher.rank.is_some_and(|rank| rank != ROOT)
        })
}

fn place(communicator: &dyn Communicator) -> PlaceFacts {
    let Topology {
        rank,
        world_size,
        local_rank,
        local_size,
        node,
        ..
    } = communicator.topology().clone();
    let launcher = Launcher::detect_from_environment();
    let refusal = match &launcher {
        Ok(launcher) => check_world_size(launcher.as_ref(), world_size, cfg!(feature = "mpi"))
            .and_then(|()| check_place(launcher.as_ref(), communicator.topology()))
            .err(),
        Err(error) => Some(error.clone()),
    };
    let complaint = refusal.map(|refusal| {
        let text = refusal.to_string();
        let (found, remedy) = text
            .split_once("; ")
            .unwrap_or((&text, "start all ranks by one launcher"));
        Complaint {
            found: found.to_owned(),
            remedy: remedy.to_owned(),
        }
    });
    let launcher = launcher
        .ok()
        .flatten()
        .map(|launcher| (launcher.name.to_owned(), launcher.num_tasks));
    PlaceFacts {
        rank,
        world_size,
        local_rank,
        local_size,
        node,
        launcher,
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

/// The data set, or why this rank cannot open it. # Collective: ranks of a node share checksums.
fn data(
    config: &DoctorConfig,
    communicator: &dyn Communicator,
) -> Result<Result<DataFacts, String>> {
    let quiet = Reporter::new(false);
    let splits = data::open(
        &config.data,
        &config.train_split,
        0,
        || Ok(None),
        communicator,
        &quiet,
    );
    let to_share: Vec<&Arc<dyn ImageDataset>> = match &splits {
        Ok(splits) => Split::ALL
            .into_iter()
            .filter_map(|split| splits.get(split))
            .collect(),
        Err(_) => Vec::new(),
    };
    data::share_checksums(&to_share, config.data.folder(), communicator)?;
    let facts = splits.map(|splits| DataFacts {
        name: splits.train.name().trim_end_matches(" train").to_owned(),
        splits: Split::ALL
            .into_iter()
            .filter_map(|split| {
                let samples = splits.get(split)?;
                Some(SplitFacts {
                    name: split.to_string(),
                    num_images: samples.len(),
                    checksum: samples.checksum(),
                })
            })
            .collect(),
    });
    Ok(facts.map_err(|error| format!("{error:#}")))
}
