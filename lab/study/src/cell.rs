//! A cell of a study: command, place, settings and id.
//!
//! In: values of a point of a matrix. Out: [`Cell`], its entry in study.json, its id.
//! Invariant: ids are names of files. Ranks are the training ones, without separate servers.

use records::StudyCell;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use crate::file::Kind;
use crate::peers::{Framework, Setting};
use cluster::hosts::Rate;

/// Flags that the scripts of all frameworks support, or that describe the job that they read.
pub(crate) const OF_FRAMEWORKS: [&str; 12] = [
    "batch_size_per_rank",
    "data_dir",
    "device",
    "dtype",
    "epochs",
    "image_size",
    "model",
    "num_classes",
    "seed",
    "steps",
    "threads",
    "warmup_steps",
];

/// Flags of the trainer that only the study sets, or that leave nothing to record.
pub(crate) const NOT_HERE: [&str; 6] = [
    "output_dir",
    "output",
    "resume",
    "allow_changed_data",
    "json",
    "help",
];

/// Place of a cell's processes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// This machine, by mpirun if there are several ranks.
    Machine,
    /// Emulated hosts on this machine.
    Hosts { rate: Rate, hosts: usize },
    /// Nodes of a Slurm cluster.
    Slurm { hosts: usize },
}

impl Place {
    /// Returns the number of machines or nodes.
    pub(crate) fn hosts(&self) -> usize {
        match self {
            Place::Machine => 1,
            Place::Hosts { hosts, .. } | Place::Slurm { hosts } => *hosts,
        }
    }
}

/// The launcher of the ranks on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RankLauncher {
    #[default]
    Plain,
    Mpirun,
    Srun,
}

impl RankLauncher {
    /// Returns the launcher of as many processes: several that need MPI are never plain.
    pub(crate) fn among(self, processes: usize, framework: Option<Framework>) -> Self {
        let needs_mpi = framework.is_none_or(Framework::needs_mpi);
        match self {
            RankLauncher::Plain if processes > 1 && needs_mpi => RankLauncher::Mpirun,
            wanted => wanted,
        }
    }
}

/// A measurement to repeat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    /// Processes: ranks and separate servers.
    pub(crate) world_size: usize,
    /// Training ranks.
    pub(crate) ranks: usize,
    pub(crate) threads: usize,
    pub(crate) settings: Map<String, Json>,
    /// Command and flags, without the output.
    pub(crate) arguments: Vec<String>,
    pub(crate) repetitions: usize,
    /// Framework of a comparison.
    pub(crate) framework: Option<Framework>,
    /// The launcher that the study file asks for.
    pub(crate) wanted: RankLauncher,
    /// Setting of another framework.
    pub(crate) chosen: Setting,
    /// Option that a search for the best setting varies.
    pub(crate) tried: String,
}

impl Cell {
    /// Framework other than Lockstep.
    pub(crate) fn peer(&self) -> Option<Framework> {
        self.framework.filter(|framework| !framework.is_ours())
    }

    /// Returns whether the cell runs as a job of Slurm.
    pub(crate) fn is_job(&self) -> bool {
        matches!(self.place, Place::Slurm { .. })
    }

    /// Returns the launcher of the ranks: several that need MPI are never plain processes.
    pub(crate) fn launcher(&self) -> RankLauncher {
        self.wanted.among(self.world_size, self.framework)
    }

    /// Returns the words of Lockstep's `bench` on the same job, with other values of some keys.
    pub(crate) fn bench_words(&self, others: &[(&str, String)]) -> Vec<String> {
        let mut words = vec![records::name(Kind::Bench)];
        for key in OF_FRAMEWORKS.into_iter().chain(["depth"]) {
            let other = others.iter().find(|(name, _)| *name == key);
            let value = other.map_or_else(|| self.setting(key), |(_, value)| value.clone());
            let is_of_images = ["data_dir", "epochs"].contains(&key)
                || (self.kind == Kind::Train && ["image_size", "num_classes"].contains(&key));
            if !value.is_empty() && !is_of_images && (key != "seed" || other.is_some()) {
                words.extend([format!("--{}", key.replace('_', "-")), value]);
            }
        }
        words
    }

    /// Returns Lockstep's measurement of the same job.
    pub(crate) fn as_ours(&self) -> Cell {
        let ours = Framework::Lockstep;
        let peer = self.framework.map_or_else(String::new, records::name);
        let mut arguments = self.bench_words(&[]);
        arguments.push("--json".to_owned());
        let launcher = self.wanted.among(self.world_size, Some(ours));
        let mut settings = self.settings.clone();
        settings.insert("framework".to_owned(), json!(ours));
        if self.place == Place::Machine {
            settings.insert("launcher".to_owned(), json!(launcher));
        }
        Cell {
            id: self.id.replacen(&peer, &records::name(ours), 1),
            kind: Kind::Bench,
            framework: Some(ours),
            chosen: Setting::default(),
            arguments,
            settings,
            ..self.clone()
        }
    }

    /// Returns the entry of study.json.
    pub(crate) fn record(&self) -> StudyCell {
        StudyCell {
            id: self.id.clone(),
            kind: records::name(self.kind),
            settings: self.settings.clone(),
            arguments: self.arguments.clone(),
            repetitions: self.repetitions as u64,
            setting: self.chosen.0.clone(),
            tried: self.tried.clone(),
        }
    }

    /// Returns a setting as a word; empty without it.
    pub(crate) fn setting(&self, name: &str) -> String {
        self.settings
            .get(name)
            .and_then(records::text)
            .unwrap_or_default()
    }
}

/// Returns a folder name in ASCII; the end of a name longer than `most` bytes is replaced by a hash
/// (FNV-1a) of all.
pub(crate) fn folder_name(name: String, most: usize) -> String {
    if name.len() <= most {
        return name;
    }
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, add);
    format!("{}-{hash:016x}", &name[..most - 17])
}
