//! One cell of a study: command, place, settings and id.
//!
//! In: the flags of one point of a matrix. Out: [`Cell`].
//! Invariant: pure. The same point has the same id, which is a file's name. Ranks are the training
//! ones, without separate servers.

use records::{IMAGENET, LAST_COMPARED_UPDATE, StudyCell};
use serde_json::{Map, Value as Json, json};
use toml::{Table, Value};

use crate::file::{Kind, Matrix, Scaling, shown, word};
use crate::peers::{Framework, Setting};
use cluster::failure::{Failure, Outcome};
use cluster::hosts::Rate;

/// Keys of a point that are not flags of the trainer.
pub(crate) const OWN_KEYS: [&str; 5] = ["ranks", "network", "hosts", "framework", "launcher"];

/// Flags that the scripts of all frameworks support, or that describe the job that they read.
const OF_FRAMEWORKS: [&str; 12] = [
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

/// Flags of the recipe in `lab/peers/accuracy.py` and `lab/peers/images.py`; mean and deviation are
/// those of CIFAR-10's training images.
const RECIPE: [&str; 20] = [
    "--dataset",
    "image-folder",
    "--eval-split",
    "test",
    "--augment",
    "crop-flip",
    "--learning-rate",
    "0.1",
    "--momentum",
    "0.9",
    "--weight-decay",
    "1e-4",
    "--schedule",
    "cosine",
    "--warmup-epochs",
    "0",
    "--normalize-mean",
    "0.4914,0.4822,0.4465",
    "--normalize-std",
    "0.2470,0.2435,0.2616",
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

/// Default number of hosts.
const DEFAULT_HOSTS: i64 = 2;

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

/// Launcher of the ranks on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    Plain,
    Mpirun,
    Srun,
}

impl Launcher {
    pub(crate) const ALL: [(&str, Launcher); 3] = [
        ("plain", Launcher::Plain),
        ("mpirun", Launcher::Mpirun),
        ("srun", Launcher::Srun),
    ];

    fn name(self) -> &'static str {
        let known = Self::ALL.iter().find(|(_, launcher)| *launcher == self);
        known.map_or("", |(name, _)| name)
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
    /// Launcher that the study file asks for.
    pub(crate) wanted: Launcher,
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

    /// Returns the launcher of the ranks: several that need MPI are never plain processes.
    pub(crate) fn launcher(&self) -> Launcher {
        launcher(self.wanted, self.framework, self.world_size)
    }

    /// Returns Lockstep's measurement of the same job.
    pub(crate) fn as_ours(&self) -> Cell {
        let mut arguments = vec![Kind::Bench.name().to_owned()];
        for key in OF_FRAMEWORKS {
            let value = self.setting(key);
            if !value.is_empty() && !["data_dir", "epochs", "seed"].contains(&key) {
                arguments.extend([format!("--{}", key.replace('_', "-")), value]);
            }
        }
        arguments.push("--json".to_owned());
        let ours = Framework::Lockstep;
        let peer = self.framework.map_or("", Framework::word);
        let launcher = launcher(self.wanted, Some(ours), self.world_size);
        let mut settings = self.settings.clone();
        settings.insert("framework".to_owned(), json!(ours.word()));
        if self.place == Place::Machine {
            settings.insert("launcher".to_owned(), json!(launcher.name()));
        }
        Cell {
            id: self.id.replacen(peer, ours.word(), 1),
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
            kind: self.kind.name().to_owned(),
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

fn launcher(wanted: Launcher, framework: Option<Framework>, world_size: usize) -> Launcher {
    let needs_mpi = framework.is_none_or(Framework::needs_mpi);
    match wanted {
        Launcher::Plain if world_size > 1 && needs_mpi => Launcher::Mpirun,
        wanted => wanted,
    }
}

/// One point of a matrix.
pub(crate) struct Point<'a> {
    pub(crate) matrix: &'a Matrix,
    /// All keys with one value each.
    pub(crate) values: Table,
    /// Keys that distinguish points of the matrix, besides those in every id.
    pub(crate) named: Vec<String>,
    pub(crate) repetitions: usize,
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

    fn place(&self, framework: Option<Framework>) -> Outcome<Place> {
        let network = self.text("network", "machine")?;
        let hosts = self.count("hosts", DEFAULT_HOSTS)?;
        match network.split_once(':') {
            None if network == "machine" => Ok(Place::Machine),
            None if network == "slurm" && framework.is_some() => {
                let text = "expected machine or hosts:RATE with framework; launcher = \"srun\" uses an allocation";
                Err(self.refusal("network", text))
            }
            None if network == "slurm" => Ok(Place::Slurm { hosts }),
            Some(("hosts", rate)) => {
                let rate = Rate::read(rate).map_err(|text| self.refusal("network", &text))?;
                // In a comparison each rank has its own host, and a single rank needs none.
                let hosts = match framework {
                    Some(_) => self.count("ranks", 1)?,
                    None => hosts,
                };
                if framework.is_some() && hosts == 1 {
                    return Ok(Place::Machine);
                }
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

    /// Returns the cell of the point.
    pub(crate) fn cell(mut self) -> Outcome<Cell> {
        if let Some(key) = NOT_HERE.iter().find(|key| self.values.contains_key(**key)) {
            return Err(self.refusal(
                key,
                "expected a flag that is not the study's own to give: remove it",
            ));
        }
        for (key, value) in &self.values {
            if word(value).is_none() {
                let text = format!("expected one value, got {}", shown(value));
                return Err(self.refusal(key, &text));
            }
        }
        let framework = self.framework()?;
        let place = self.place(framework)?;
        if place == Place::Machine {
            // A matrix may have a number of hosts for its other networks.
            self.values.remove("hosts");
        }
        let ranks = self.count("ranks", 1)?;
        let computes = self.matrix.kind != Kind::Netbench;
        if framework.is_some() {
            self.check_job(ranks)?;
        } else if computes {
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
        }
        if computes {
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
        let wanted = self.wanted(framework)?;
        let launcher = launcher(wanted, framework, world_size).name();
        let settings = self.settings(&place, ranks, launcher, batch);
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
            arguments: match framework.filter(|framework| !framework.is_ours()) {
                Some(peer) => self.peer_arguments(peer),
                None => self.arguments(batch),
            },
            settings,
            place,
            repetitions: self.repetitions,
            framework,
            wanted,
            chosen: Setting::default(),
            tried: String::new(),
        })
    }

    fn framework(&self) -> Outcome<Option<Framework>> {
        let word = self.text("framework", "")?;
        match Framework::named(&word) {
            None if word.is_empty() => Ok(None),
            None => {
                let known = Framework::ALL.map(Framework::word).join(", ");
                let text = format!("expected one of {known}, got `{word}`");
                Err(self.refusal("framework", &text))
            }
            framework => Ok(framework),
        }
    }

    fn wanted(&self, framework: Option<Framework>) -> Outcome<Launcher> {
        let word = self.text("launcher", "plain")?;
        if framework.is_none() && self.values.contains_key("launcher") {
            let text = "expected only with framework: the network decides the launcher";
            return Err(self.refusal("launcher", text));
        }
        let known = Launcher::ALL.iter().find(|(name, _)| *name == word);
        known.map(|(_, launcher)| *launcher).ok_or_else(|| {
            let text = format!("expected plain, mpirun or srun, got `{word}`");
            self.refusal("launcher", &text)
        })
    }

    /// Completes and checks the job of a comparison.
    fn check_job(&mut self, ranks: usize) -> Outcome {
        let is_training = self.matrix.kind == Kind::Train;
        if self.matrix.kind == Kind::Netbench {
            return Err(self.refusal("framework", "expected a matrix of kind bench or train"));
        }
        let mut defaults = vec![("model", "resnet20"), ("dtype", "f32"), ("device", "flex")];
        defaults.retain(|(key, _)| !self.values.contains_key(*key));
        for (key, value) in defaults {
            self.values.insert(key.to_owned(), Value::from(value));
        }
        if !is_training {
            self.values.entry("steps").or_insert(Value::Integer(8));
            self.values
                .entry("warmup_steps")
                .or_insert(Value::Integer(2));
        } else {
            self.values.entry("seed").or_insert(Value::Integer(0));
        }
        let is_foreign = |key: &&String| {
            !OF_FRAMEWORKS.contains(&key.as_str()) && !OWN_KEYS.contains(&key.as_str())
        };
        if let Some(key) = self.values.keys().find(is_foreign) {
            let text = format!(
                "the scripts of other frameworks do not support it, expected one of {}",
                OF_FRAMEWORKS.join(", ")
            );
            return Err(self.refusal(key, &text));
        }
        let dtype = self.text("dtype", "")?;
        if !["f32", "bf16"].contains(&dtype.as_str()) {
            return Err(self.refusal("dtype", &format!("expected f32 or bf16, got `{dtype}`")));
        }
        self.check_model(is_training)?;
        if is_training {
            for key in ["epochs", "data_dir"] {
                if !self.values.contains_key(key) {
                    return Err(self.refusal(key, "expected a value: frameworks train on images"));
                }
            }
            if ranks > 1 {
                return Err(self.refusal("ranks", "expected 1: frameworks train on one rank"));
            }
            return Ok(());
        }
        let steps = self.count("steps", 1)?;
        let warmup = self.values.get("warmup_steps").and_then(Value::as_integer);
        let all = steps as i64 + warmup.unwrap_or(0);
        if all <= LAST_COMPARED_UPDATE as i64 {
            let text = format!(
                "expected at least {} with warmup_steps, as the loss after {LAST_COMPARED_UPDATE} is compared, got {all}",
                LAST_COMPARED_UPDATE + 1
            );
            return Err(self.refusal("steps", &text));
        }
        Ok(())
    }

    fn check_model(&self, is_training: bool) -> Outcome {
        let model = self.text("model", "")?;
        let depth = model
            .strip_prefix("resnet")
            .and_then(|depth| depth.parse::<usize>().ok());
        let is_small = depth.is_some_and(|depth| depth >= 8 && depth % 6 == 2);
        if !IMAGENET.contains(&model.as_str()) {
            return if is_small {
                Ok(())
            } else {
                let text = format!(
                    "expected resnet<6n+2> as in resnet20, or ImageNet's {}, got `{model}`",
                    IMAGENET.join(", ")
                );
                Err(self.refusal("model", &text))
            };
        }
        if is_training {
            let text =
                format!("expected resnet<6n+2>: frameworks train on small images, got `{model}`");
            return Err(self.refusal("model", &text));
        }
        match self.framework()? {
            Some(framework) if !framework.has_imagenet() => {
                let text = format!(
                    "{model}: expected pytorch or horovod for ImageNet's networks, got `{}`",
                    framework.word()
                );
                Err(self.refusal("framework", &text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the words of `lab/peers/run.py`.
    fn peer_arguments(&self, peer: Framework) -> Vec<String> {
        let mut arguments = vec![peer.word().to_owned()];
        for key in [
            "dtype",
            "steps",
            "warmup_steps",
            "epochs",
            "data_dir",
            "seed",
        ] {
            if let Some(value) = self.values.get(key).and_then(word) {
                arguments.extend([format!("--{}", key.replace('_', "-")), value]);
            }
        }
        arguments
    }

    /// Returns the samples of a rank's pass and of all ranks' step.
    fn batch(&self, ranks: usize) -> Outcome<(usize, usize)> {
        let passes = self.count("grad_accum_steps", 1)?;
        let has = |key: &str| self.values.contains_key(key);
        let own = has("batch_size_per_rank");
        let global = has("global_batch_size");
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
        launcher: &str,
        batch: Option<(usize, usize)>,
    ) -> Map<String, Json> {
        let values = self.values.iter();
        let mut settings: Map<String, Json> = values
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let (network, launcher, hosts) = match place {
            Place::Machine => ("machine".to_owned(), launcher, None),
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
        settings
    }

    fn arguments(&self, batch: Option<(usize, usize)>) -> Vec<String> {
        let mut arguments = vec![self.matrix.kind.name().to_owned()];
        let own = |key: &str| {
            OWN_KEYS.contains(&key) || key == "global_batch_size" || key == "batch_size_per_rank"
        };
        // The trainer refuses `--compress none` with methods that support no compression.
        let says_nothing =
            |key: &str, value: &Value| key == "compress" && value.as_str() == Some("none");
        for (key, value) in self
            .values
            .iter()
            .filter(|(key, value)| !own(key) && !says_nothing(key, value))
        {
            let flag = format!("--{}", key.replace('_', "-"));
            let value = word(value).unwrap_or_default();
            if value == "true" || value == "false" {
                arguments.push(format!("{flag}={value}"));
            } else {
                arguments.extend([flag, value]);
            }
        }
        if let Some((own, global)) = batch {
            // An exact sum on any number of ranks needs the batch of all ranks.
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
        } else if self.values.contains_key("framework") {
            arguments.extend(RECIPE.map(str::to_owned));
        }
        arguments
    }

    /// Returns kind, model, format, batch, ranks, method and network, then the keys that
    /// distinguish points.
    fn id(&self, place: &Place, ranks: usize, batch: Option<(usize, usize)>) -> Outcome<String> {
        let mut parts = Vec::new();
        if self.matrix.kind != Kind::Bench {
            parts.push(self.matrix.kind.name().to_owned());
        }
        let framework = self.text("framework", "")?;
        parts.extend(Some(framework).filter(|word| !word.is_empty()));
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
            let sync = format!("{}{compression}", self.text("sync", "")?);
            parts.extend(Some(sync).filter(|word| !word.is_empty()));
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
        // Limit of file systems.
        Ok(folder_name(name, 255))
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
