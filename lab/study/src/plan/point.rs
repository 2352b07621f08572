//! One point of a matrix: its place, its batch and its id.
//!
//! In: one value for each key. Out: the [`Cell`], or what is wrong with a key.
//! Invariant: pure; the same point has the same id.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};
use toml::{Table, Value};

use crate::cell::{Cell, NOT_HERE, Place, RankLauncher, folder_name};
use crate::file::{Kind, Matrix, Scaling, shown, word};
use crate::peers::{Framework, Setting};
use cluster::failure::{Failure, Outcome, usage};
use cluster::hosts::Rate;

/// Default number of hosts.
const DEFAULT_HOSTS: i64 = 2;

/// Keys in every id.
const IN_EVERY_ID: [&str; 10] = [
    "framework",
    "model",
    "dtype",
    "batch_size_per_rank",
    "global_batch_size",
    "ranks",
    "threads",
    "sync",
    "compress",
    "network",
];

/// One point of a matrix.
#[derive(Clone)]
pub(super) struct Point<'a> {
    pub(super) matrix: &'a Matrix,
    /// All keys with one value each.
    pub(super) values: Table,
    /// Keys that distinguish points of the matrix, besides those in every id.
    pub(super) named: Vec<String>,
    pub(super) repetitions: usize,
}

impl Point<'_> {
    /// Returns whether the point has all these values; a list means any of them.
    pub(super) fn has(&self, when: &Table) -> bool {
        when.iter().all(|(key, expected)| {
            let value = self.values.get(key);
            match expected {
                Value::Array(any) => value.is_some_and(|value| any.contains(value)),
                expected => value == Some(expected),
            }
        })
    }

    /// Adds keys to the id.
    pub(super) fn name<'k>(&mut self, keys: impl Iterator<Item = &'k String>) {
        for key in keys {
            if !IN_EVERY_ID.contains(&key.as_str()) && !self.named.contains(key) {
                self.named.push(key.clone());
            }
        }
    }

    pub(super) fn default(&mut self, key: &str, value: impl Into<Value>) {
        self.values
            .entry(key.to_owned())
            .or_insert_with(|| value.into());
    }

    pub(super) fn refusal(&self, key: &str, text: &str) -> Failure {
        usage!("{}: {key}: {text}", self.matrix.place)
    }

    pub(super) fn count(&self, key: &str, default: i64) -> Outcome<usize> {
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

    pub(super) fn text(&self, key: &str, default: &str) -> Outcome<String> {
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
    pub(super) fn cell(mut self) -> Outcome<Cell> {
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
        let framework = self.variant("framework")?;
        let place = self.place(framework)?;
        if place == Place::Machine {
            // A matrix may have a number of hosts for its other networks.
            self.values.remove("hosts");
        }
        let ranks = self.count("ranks", 1)?;
        let computes = self.matrix.kind != Kind::Netbench;
        if computes {
            self.default("model", "resnet20");
            self.default("dtype", "f32");
            self.default("threads", 1);
        }
        if let Some(framework) = framework {
            self.check_job(framework, ranks)?;
        } else if computes {
            self.default("sync", "allreduce");
            self.default("compress", "none");
        }
        let batch = match computes {
            true => Some(self.batch(ranks)?),
            false => None,
        };
        let mut world_size = ranks;
        if self.text("server_placement", "beside")? == "own" {
            world_size += self.count("servers", 1)?;
        }
        if let Place::Slurm { hosts } = place
            && !world_size.is_multiple_of(hosts.min(world_size))
        {
            let text = format!(
                "{world_size} processes do not spread evenly over {hosts} nodes: set another hosts"
            );
            return Err(self.refusal("ranks", &text));
        }
        let wanted = self.wanted(framework)?;
        let launcher = wanted.among(world_size, framework);
        let settings = self.settings(&place, ranks, &records::name(launcher), batch);
        if self.matrix.kind == Kind::Bench {
            self.count("steps", 1)?;
        }
        Ok(Cell {
            id: self.id(&settings),
            kind: self.matrix.kind,
            world_size,
            ranks,
            threads: match computes {
                true => self.count("threads", 1)?,
                false => 1,
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

    /// Reads the variant that a key names, if the point has the key.
    fn variant<T: DeserializeOwned>(&self, key: &str) -> Outcome<Option<T>> {
        let value = self.values.get(key).cloned();
        let variant = value.map(Value::try_into).transpose();
        variant.map_err(|error: toml::de::Error| self.refusal(key, error.message()))
    }

    fn wanted(&self, framework: Option<Framework>) -> Outcome<RankLauncher> {
        let wanted = self.variant("launcher")?;
        if framework.is_none() && wanted.is_some() {
            let text = "expected only with framework: the network decides the launcher";
            return Err(self.refusal("launcher", text));
        }
        Ok(wanted.unwrap_or_default())
    }

    /// Returns the samples of a rank's pass and of all ranks' step.
    fn batch(&self, ranks: usize) -> Outcome<(usize, usize)> {
        let passes = self.count("grad_accum_steps", 1)?;
        let [own, global] = ["batch_size_per_rank", "global_batch_size"];
        let has = [own, global].map(|key| self.values.contains_key(key));
        let (key, expected) = match self.matrix.scaling {
            Scaling::Weak => (own, own),
            Scaling::Strong => (global, global),
            Scaling::None if has[1] => (global, "one of the two"),
            Scaling::None => (own, "one of the two"),
        };
        if has[0] == has[1] || !self.values.contains_key(key) {
            let scaling = records::name(self.matrix.scaling);
            let text = format!(
                "expected {own} or {global}, with scaling `{scaling}` {expected}: set it, and remove the other"
            );
            return Err(self.refusal(key, &text));
        }
        let size = self.count(key, 1)?;
        if key == own {
            return Ok((size, size * passes * ranks));
        }
        if !size.is_multiple_of(ranks * passes) {
            let text = format!(
                "{size} samples do not divide by {} of {passes} passes: choose a multiple of {}",
                records::counted(ranks, "rank"),
                ranks * passes
            );
            return Err(self.refusal(key, &text));
        }
        Ok((size / ranks / passes, size))
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
        set("scaling", json!(self.matrix.scaling));
        if let Some(hosts) = hosts {
            set("hosts", json!(hosts));
        }
        if let Some((own, global)) = batch {
            set("batch_size_per_rank", json!(own));
            set("global_batch_size", json!(global));
        }
        settings
    }

    /// Returns kind, model, format, batch, ranks, method and network, then the keys that
    /// distinguish points.
    fn id(&self, settings: &Map<String, Json>) -> String {
        let of = |start: &str, key: &str| {
            let value = settings.get(key).and_then(records::text);
            value.map_or(String::new(), |value| format!("{start}{value}"))
        };
        let mut parts = vec![of("", "framework")];
        if self.matrix.kind != Kind::Bench {
            parts.insert(0, records::name(self.matrix.kind));
        }
        if self.matrix.kind != Kind::Netbench {
            let own = of("b", "batch_size_per_rank");
            parts.extend([of("", "model"), of("", "dtype"), own]);
        }
        parts.push(of("r", "ranks"));
        if self.matrix.kind != Kind::Netbench {
            let threads = Some(of("t", "threads")).filter(|threads| threads != "t1");
            let compression = Some(of("+", "compress")).filter(|kind| kind != "+none");
            parts.push(threads.unwrap_or_default());
            parts.push(of("", "sync") + &compression.unwrap_or_default());
        }
        parts.push(of("", "network"));
        if self.matrix.scaling == Scaling::Strong {
            parts.push("strong".to_owned());
        }
        for key in &self.named {
            let value = self.values.get(key).and_then(word);
            parts.extend(value.map(|value| format!("{key}{value}")));
        }
        parts.retain(|part| !part.is_empty());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        let name = parts.join("-").replace(|c: char| !is_plain(c), "_");
        // Limit of file systems.
        folder_name(name, 255)
    }
}
