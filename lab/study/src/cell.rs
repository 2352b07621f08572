//! One cell of a study: what is run, with which settings, under which name.
//!
//! In: the flags of one point of a matrix. Out: [`Cell`].
//! Invariant: pure. The same point has the same id, which is a file's name; ranks are those that train, servers of their own come
//! on top.

use records::StudyCell;
use serde_json::{Map, Value as Json, json};
use toml::{Table, Value};

use super::file::{Kind, Matrix, Scaling};
use super::keys::{shown, word};
use cluster::failure::{Failure, Outcome};
use cluster::hosts::Rate;

/// Keys of a point that are no flags of the trainer's.
pub(super) const OWN_KEYS: [&str; 3] = ["ranks", "network", "hosts"];

/// Flags of the trainer's that a study gives itself, or that leave nothing to record.
pub(super) const NOT_HERE: [&str; 6] = [
    "output_dir",
    "output",
    "resume",
    "allow_changed_data",
    "json",
    "help",
];

/// Machines of a cell, where it is not said.
const DEFAULT_HOSTS: i64 = 2;

/// Where a cell runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// This machine: alone, or under mpirun.
    Machine,
    /// Emulated hosts on this machine.
    Hosts { rate: Rate, hosts: usize },
    /// Nodes of a Slurm cluster.
    Slurm { hosts: usize },
}

/// What is run and repeated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) place: Place,
    /// Processes: ranks and servers of their own.
    pub(super) world_size: usize,
    /// Ranks that train.
    pub(super) ranks: usize,
    pub(super) threads: usize,
    pub(super) settings: Map<String, Json>,
    /// The trainer's command and flags, without where it writes to.
    pub(super) arguments: Vec<String>,
    pub(super) repetitions: usize,
}

impl Cell {
    /// What study.json says of it.
    pub(super) fn record(&self) -> StudyCell {
        StudyCell {
            id: self.id.clone(),
            kind: self.kind.name().to_owned(),
            settings: self.settings.clone(),
            arguments: self.arguments.clone(),
            repetitions: self.repetitions as u64,
        }
    }

    /// A setting as a word; empty where the cell has none of that name.
    pub(super) fn setting(&self, name: &str) -> String {
        self.settings
            .get(name)
            .and_then(records::text)
            .unwrap_or_default()
    }
}

/// One point of a matrix, resolved step by step.
pub(super) struct Point<'a> {
    pub(super) matrix: &'a Matrix,
    /// All keys with one value each.
    pub(super) values: Table,
    /// Keys that tell points of the matrix apart, beyond those that every id has.
    pub(super) named: Vec<String>,
    pub(super) repetitions: usize,
}

impl Point<'_> {
    fn refusal(&self, key: &str, text: &str) -> Failure {
        Failure::Usage(format!("{}: {key}: {text}", self.matrix.place))
    }

    fn count(&self, key: &str, default: i64) -> Outcome<usize> {
        let value = self
            .values
            .get(key)
            .cloned()
            .unwrap_or(Value::Integer(default));
        let count = value
            .as_integer()
            .and_then(|count| usize::try_from(count).ok())
            .filter(|count| *count > 0);
        count.ok_or_else(|| {
            self.refusal(
                key,
                &format!("expected a whole number from 1, got {}", shown(&value)),
            )
        })
    }

    fn text(&self, key: &str, default: &str) -> Outcome<String> {
        match self.values.get(key) {
            None => Ok(default.to_owned()),
            Some(value) => value.as_str().map(str::to_owned).ok_or_else(|| {
                self.refusal(
                    key,
                    &format!("expected a text in quotes, got {}", shown(value)),
                )
            }),
        }
    }

    fn place(&self) -> Outcome<Place> {
        let network = self.text("network", "machine")?;
        let hosts = self.count("hosts", DEFAULT_HOSTS)?;
        match network.split_once(':') {
            None if network == "machine" => Ok(Place::Machine),
            None if network == "slurm" => Ok(Place::Slurm { hosts }),
            Some(("hosts", rate)) => {
                let rate = Rate::read(rate).map_err(|text| self.refusal("network", &text))?;
                Ok(Place::Hosts { rate, hosts })
            }
            _ => Err(self.refusal(
                "network",
                &format!(
                    "expected machine, slurm or hosts:RATE such as hosts:1gbit, got `{network}`"
                ),
            )),
        }
    }

    /// The cell.
    pub(super) fn cell(mut self) -> Outcome<Cell> {
        if let Some(key) = NOT_HERE.iter().find(|key| self.values.contains_key(**key)) {
            return Err(self.refusal(
                key,
                "expected a flag that is not the study's own to give: remove it",
            ));
        }
        let place = self.place()?;
        if place == Place::Machine {
            // A matrix may name a number of hosts for its other networks.
            self.values.remove("hosts");
        }
        let ranks = self.count("ranks", 1)?;
        let computes = self.matrix.kind != Kind::Netbench;
        if computes {
            for (key, value) in [
                ("model", "resnet20"),
                ("dtype", "f32"),
                ("sync", "allreduce"),
                ("compress", "none"),
            ] {
                self.values
                    .entry(key)
                    .or_insert_with(|| Value::String(value.to_owned()));
            }
            self.values.entry("threads").or_insert(Value::Integer(1));
        }
        let batch = if computes {
            Some(self.batch(ranks)?)
        } else {
            None
        };
        let own_servers = self.text("server_placement", "beside")? == "own";
        let world_size = ranks
            + if own_servers {
                self.count("servers", 1)?
            } else {
                0
            };
        if let Place::Slurm { hosts } = place
            && !world_size.is_multiple_of(hosts.min(world_size))
        {
            let text = format!(
                "{world_size} processes do not spread evenly over {hosts} nodes: set another hosts"
            );
            return Err(self.refusal("ranks", &text));
        }
        let settings = self.settings(&place, ranks, world_size, batch)?;
        if self.matrix.kind == Kind::Bench {
            self.count("steps", 1)?;
        }
        Ok(Cell {
            id: self.id(&place, ranks, batch)?,
            kind: self.matrix.kind,
            world_size,
            ranks,
            threads: if computes {
                self.count("threads", 1)?
            } else {
                1
            },
            arguments: self.arguments(batch)?,
            settings,
            place,
            repetitions: self.repetitions,
        })
    }

    /// Samples of a rank in a pass, and of all ranks in a step.
    fn batch(&self, ranks: usize) -> Outcome<(usize, usize)> {
        let passes = self.count("grad_accum_steps", 1)?;
        let has = |key: &str| self.values.contains_key(key);
        let (own, global) = (has("batch_size_per_rank"), has("global_batch_size"));
        let is_strong = match (self.matrix.scaling, own, global) {
            (Scaling::Weak, _, true) => {
                let text = "weak scaling keeps the batch of each rank: remove it, and set batch_size_per_rank";
                return Err(self.refusal("global_batch_size", text));
            }
            (Scaling::Strong, true, _) => {
                let text = "strong scaling keeps the batch of all ranks: remove it, and set global_batch_size";
                return Err(self.refusal("batch_size_per_rank", text));
            }
            (Scaling::None, true, true) => {
                return Err(self.refusal(
                    "batch_size_per_rank",
                    "global_batch_size is set, too: keep one",
                ));
            }
            (_, false, false) => {
                let text = "expected batch_size_per_rank, or global_batch_size for strong scaling, got none: set one";
                return Err(self.refusal("batch_size_per_rank", text));
            }
            (_, _, global) => global,
        };
        if !is_strong {
            let own = self.count("batch_size_per_rank", 1)?;
            return Ok((own, own * passes * ranks));
        }
        let global = self.count("global_batch_size", 1)?;
        if !global.is_multiple_of(ranks * passes) {
            let parts = if passes > 1 {
                format!("{ranks} ranks of {passes} passes")
            } else {
                format!("{ranks} ranks")
            };
            let text = format!(
                "{global} samples do not divide by {parts}: choose a multiple of {}",
                ranks * passes
            );
            return Err(self.refusal("global_batch_size", &text));
        }
        Ok((global / ranks / passes, global))
    }

    fn settings(
        &self,
        place: &Place,
        ranks: usize,
        world_size: usize,
        batch: Option<(usize, usize)>,
    ) -> Outcome<Map<String, Json>> {
        let mut settings = Map::new();
        for (key, value) in &self.values {
            let value = match value {
                Value::String(text) => json!(text),
                Value::Integer(number) => json!(number),
                Value::Float(number) => json!(number),
                Value::Boolean(truth) => json!(truth),
                other => {
                    return Err(
                        self.refusal(key, &format!("expected one value, got {}", shown(other)))
                    );
                }
            };
            settings.insert(key.clone(), value);
        }
        let (network, launcher, hosts) = match place {
            Place::Machine => (
                "machine".to_owned(),
                if world_size > 1 { "mpirun" } else { "plain" },
                None,
            ),
            Place::Hosts { rate, hosts } => (rate.to_string(), "hosts", Some(hosts)),
            Place::Slurm { hosts } => ("slurm".to_owned(), "slurm", Some(hosts)),
        };
        let mut set = |key: &str, value: Json| drop(settings.insert(key.to_owned(), value));
        set("ranks", json!(ranks));
        set("network", json!(network));
        set("launcher", json!(launcher));
        set("scaling", json!(self.matrix.scaling.name()));
        if let Some(hosts) = hosts {
            set("hosts", json!(hosts));
        }
        if let Some((own, global)) = batch {
            set("batch_size_per_rank", json!(own));
            set("global_batch_size", json!(global));
        }
        Ok(settings)
    }

    fn arguments(&self, batch: Option<(usize, usize)>) -> Outcome<Vec<String>> {
        let mut arguments = vec![self.matrix.kind.name().to_owned()];
        let own = |key: &str| {
            OWN_KEYS.contains(&key) || key == "global_batch_size" || key == "batch_size_per_rank"
        };
        // The trainer refuses to be told of no compression where a method knows none.
        let says_nothing =
            |key: &str, value: &Value| key == "compress" && value.as_str() == Some("none");
        for (key, value) in self
            .values
            .iter()
            .filter(|(key, value)| !own(key) && !says_nothing(key, value))
        {
            let flag = format!("--{}", key.replace('_', "-"));
            let value = word(value).ok_or_else(|| {
                self.refusal(key, &format!("expected one value, got {}", shown(value)))
            })?;
            if value == "true" || value == "false" {
                arguments.push(format!("{flag}={value}"));
            } else {
                arguments.extend([flag, value]);
            }
        }
        if let Some((own, global)) = batch {
            // A sum of the same bits on any number of ranks is told only the batch of all.
            let is_of_all =
                self.matrix.kind == Kind::Train && self.values.contains_key("global_batch_size");
            let (flag, size) = if is_of_all {
                ("--global-batch-size", global)
            } else {
                ("--batch-size-per-rank", own)
            };
            arguments.extend([flag.to_owned(), size.to_string()]);
        }
        if self.matrix.kind == Kind::Bench {
            arguments.push("--json".to_owned());
        }
        Ok(arguments)
    }

    /// Kind, model, number format, batch, ranks, method, network; then what else tells the points apart.
    fn id(&self, place: &Place, ranks: usize, batch: Option<(usize, usize)>) -> Outcome<String> {
        let mut parts = Vec::new();
        if self.matrix.kind != Kind::Bench {
            parts.push(self.matrix.kind.name().to_owned());
        }
        let threads = self.count("threads", 1)?;
        if let Some((own, _)) = batch {
            parts.extend([
                self.text("model", "")?,
                self.text("dtype", "")?,
                format!("b{own}"),
                format!("r{ranks}"),
            ]);
            if threads > 1 {
                parts.push(format!("t{threads}"));
            }
            let compression = self.text("compress", "none")?;
            let compression = if compression == "none" {
                String::new()
            } else {
                format!("+{compression}")
            };
            parts.push(format!("{}{compression}", self.text("sync", "")?));
        } else {
            parts.push(format!("r{ranks}"));
        }
        parts.push(match place {
            Place::Machine => "machine".to_owned(),
            Place::Hosts { rate, .. } => rate.to_string(),
            Place::Slurm { .. } => "slurm".to_owned(),
        });
        if self.matrix.scaling == Scaling::Strong {
            parts.push("strong".to_owned());
        }
        for key in &self.named {
            if let Some(value) = self.values.get(key).and_then(word) {
                parts.push(format!("{key}{value}"));
            }
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        let name = parts
            .join("-")
            .chars()
            .map(|c| if is_plain(c) { c } else { '_' })
            .collect();
        // A file's name has 255 bytes at most.
        Ok(folder_name(name, 255))
    }
}

/// The name of a folder, in ASCII; of what is longer than `most` bytes the begin, and a hash of all (FNV-1a), which tells it apart.
pub(super) fn folder_name(name: String, most: usize) -> String {
    if name.len() <= most {
        return name;
    }
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, add);
    format!("{}-{hash:016x}", &name[..most - 17])
}
