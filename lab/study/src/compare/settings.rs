//! What is compared: the command line of `trainer compare`, understood.
//!
//! In: [`CompareArgs`], the environment's cache folder. Out: [`Settings`].
//! Invariant: every list has something in it and nothing twice; what cannot be measured is refused before anything is started.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::CompareArgs;
use super::framework::{self, Framework};
use crate::machine;
use cluster::failure::{Failure, Outcome};
use cluster::hosts::Rate;

/// The last loss that is compared is that after this many updates.
pub(super) const LAST_COMPARED_STEP: usize = 5;

/// Of the small images' job, whose weights a training on images starts from.
const NUM_CLASSES: usize = 10;

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    Plain,
    Mpirun,
    Srun,
    /// Each rank on an emulated host that sends at this rate.
    Hosts(Rate),
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Launcher::Plain => f.write_str("plain"),
            Launcher::Mpirun => f.write_str("mpirun"),
            Launcher::Srun => f.write_str("srun"),
            Launcher::Hosts(rate) => write!(f, "hosts:{rate}"),
        }
    }
}

const IMAGENET: [&str; 5] = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"];

/// Training on images for some epochs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Accuracy {
    pub(super) epochs: usize,
    pub(super) seeds: usize,
    pub(super) data_dir: PathBuf,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) frameworks: Vec<Framework>,
    pub(super) models: Vec<String>,
    pub(super) ranks: Vec<usize>,
    pub(super) dtypes: Vec<String>,
    pub(super) threads: usize,
    pub(super) batch_size_per_rank: usize,
    pub(super) steps: usize,
    pub(super) warmup_steps: usize,
    pub(super) rounds: usize,
    /// Whether the other frameworks' usual settings are tried.
    pub(super) is_swept: bool,
    pub(super) launcher: Launcher,
    pub(super) accuracy: Option<Accuracy>,
    pub(super) output: PathBuf,
    pub(super) peers_dir: PathBuf,
    /// Of one run.
    pub(super) timeout: Duration,
    /// What others may take of the processors during a run that counts as undisturbed.
    pub(super) quiet_cores: f64,
    /// How often a disturbed run is made at most.
    pub(super) attempts: usize,
    /// Measure all anew.
    pub(super) is_again: bool,
}

impl Settings {
    pub(super) fn read(args: &CompareArgs) -> Outcome<Self> {
        fn or<'t>(text: &'t Option<String>, default: &'t str) -> &'t str {
            text.as_deref().unwrap_or(default)
        }
        let settings = Settings {
            frameworks: framework::named(or(&args.with, "pytorch,horovod,tensorflow,mxnet,jax"))?,
            models: models(or(&args.models, "resnet20"), args)?,
            ranks: ranks(or(&args.ranks, "1,2"))?,
            dtypes: dtypes(or(&args.dtype, "f32"))?,
            threads: args.threads.unwrap_or(1),
            batch_size_per_rank: args.batch_size_per_rank.unwrap_or(128),
            steps: args.steps.unwrap_or(8),
            warmup_steps: args.warmup_steps.unwrap_or(2),
            rounds: args.rounds.unwrap_or(6),
            is_swept: is_swept(or(&args.peer_settings, "best"))?,
            launcher: launcher(or(&args.launcher, "plain"))?,
            accuracy: accuracy(args)?,
            output: args
                .output
                .clone()
                .unwrap_or_else(|| PathBuf::from("runs/comparison")),
            peers_dir: args.peers_dir.clone().map_or_else(cache_folder, Ok)?,
            timeout: Duration::from_secs(args.timeout.unwrap_or(300) as u64),
            quiet_cores: quiet_cores(or(&args.quiet_cores, "0.2"))?,
            attempts: args.attempts.unwrap_or(3),
            is_again: args.again,
        };
        if settings.warmup_steps + settings.steps <= LAST_COMPARED_STEP {
            return Err(Failure::Usage(format!(
                "--warmup-steps and --steps: expected at least {} together, as the loss after {LAST_COMPARED_STEP} steps is compared, got {}",
                LAST_COMPARED_STEP + 1,
                settings.warmup_steps + settings.steps
            )));
        }
        let on_hosts = settings.ranks.iter().filter(|&&ranks| ranks > 1).count();
        if matches!(settings.launcher, Launcher::Hosts(_)) && on_hosts != 1 {
            let got: Vec<String> = settings.ranks.iter().map(usize::to_string).collect();
            return Err(Failure::Usage(format!(
                "--launcher hosts: expected one number of --ranks above 1, for which hosts are made, got {}: \
                 compare others with another --output",
                got.join(",")
            )));
        }
        Ok(settings)
    }

    /// What must be the same for measurements to stand in one table, and how many blocks there are of each.
    pub(super) fn job(&self) -> Map<String, Value> {
        let entries = [
            ("batch_size_per_rank", json!(self.batch_size_per_rank)),
            (
                "optimizer",
                json!("SGD lr 0.01 momentum 0.9 weight decay 1e-4 on all parameters"),
            ),
            ("steps", json!(self.steps)),
            ("warmup_steps", json!(self.warmup_steps)),
            ("rounds", json!(self.rounds)),
            (
                "peer_settings",
                json!(if self.is_swept { "best" } else { "defaults" }),
            ),
            ("threads", json!(self.threads)),
            ("launcher", json!(self.launcher.to_string())),
            ("initial_weights", json!("the same file for all")),
            (
                "batches",
                json!("the same files for all: 4 a rank in turn, random pixels and labels"),
            ),
            (
                "images",
                json!("32 x 32, 10 classes; ImageNet's networks 224 x 224, 1000 classes"),
            ),
            (
                "images_per_second_means",
                json!(machine::IMAGES_PER_SECOND_MEANS),
            ),
        ];
        entries
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect()
    }
}

/// The words of a comma-separated list, each once.
fn words(flag: &str, list: &str) -> Outcome<Vec<String>> {
    let words: Vec<String> = list.split(',').map(|word| word.trim().to_owned()).collect();
    for (index, word) in words.iter().enumerate() {
        if word.is_empty() {
            return Err(Failure::Usage(format!(
                "{flag}: expected words between the commas, got `{list}`"
            )));
        }
        if words[..index].contains(word) {
            return Err(Failure::Usage(format!(
                "{flag}: `{word}` is given twice: keep one"
            )));
        }
    }
    Ok(words)
}

fn models(list: &str, args: &CompareArgs) -> Outcome<Vec<String>> {
    let models = words("--models", list)?;
    for model in &models {
        let depth = model
            .strip_prefix("resnet")
            .and_then(|depth| depth.parse::<usize>().ok());
        if !is_imagenet(model) && !depth.is_some_and(|depth| depth >= 8 && depth % 6 == 2) {
            return Err(Failure::Usage(format!(
                "--models: expected resnet<6n+2> as in resnet20,resnet44, or ImageNet's {}, got `{model}`",
                IMAGENET.join(", ")
            )));
        }
    }
    if let Some(model) = models.iter().find(|model| is_imagenet(model)) {
        let is_torch = |word: &str| matches!(word.trim(), "pytorch" | "horovod");
        if !args
            .with
            .as_deref()
            .is_some_and(|with| with.split(',').all(is_torch))
        {
            return Err(Failure::Usage(format!(
                "--models {model}: only PyTorch and Horovod know ImageNet's networks here: say --with pytorch,horovod, or one of them"
            )));
        }
        if args.epochs.is_some() {
            return Err(Failure::Usage(format!(
                "--models {model}: accuracy is compared on small images only: leave out --epochs, or take resnet<6n+2>"
            )));
        }
    }
    Ok(models)
}

/// Whether it is one of ImageNet's networks, whose job has images of 224 pixels and 1,000 classes.
pub(super) fn is_imagenet(model: &str) -> bool {
    IMAGENET.contains(&model)
}

fn ranks(list: &str) -> Outcome<Vec<usize>> {
    let mut ranks = Vec::new();
    for word in words("--ranks", list)? {
        match word.parse::<usize>() {
            Ok(count) if count > 0 => ranks.push(count),
            _ => {
                return Err(Failure::Usage(format!(
                    "--ranks: expected whole numbers from 1, got `{word}`"
                )));
            }
        }
    }
    // One rank comes first: speedups are measured by it.
    ranks.sort_unstable();
    Ok(ranks)
}

fn dtypes(list: &str) -> Outcome<Vec<String>> {
    let dtypes = words("--dtype", list)?;
    match dtypes
        .iter()
        .find(|dtype| !["f32", "bf16"].contains(&dtype.as_str()))
    {
        None => Ok(dtypes),
        Some(other) => Err(Failure::Usage(format!(
            "--dtype: expected f32 or bf16, or both, got `{other}`"
        ))),
    }
}

fn launcher(word: &str) -> Outcome<Launcher> {
    match word {
        "plain" => Ok(Launcher::Plain),
        "mpirun" => Ok(Launcher::Mpirun),
        "srun" => Ok(Launcher::Srun),
        other => match other.strip_prefix("hosts:").map(Rate::read) {
            Some(Ok(rate)) => Ok(Launcher::Hosts(rate)),
            Some(Err(reason)) => Err(Failure::Usage(format!("--launcher hosts: {reason}"))),
            None => Err(Failure::Usage(format!(
                "--launcher: expected plain, mpirun, srun or hosts:RATE such as hosts:1gbit, got `{other}`"
            ))),
        },
    }
}

fn is_swept(word: &str) -> Outcome<bool> {
    match word {
        "best" => Ok(true),
        "defaults" => Ok(false),
        other => Err(Failure::Usage(format!(
            "--peer-settings: expected best or defaults, got `{other}`"
        ))),
    }
}

fn quiet_cores(text: &str) -> Outcome<f64> {
    match text.parse::<f64>() {
        Ok(cores) if cores >= 0.0 && cores.is_finite() => Ok(cores),
        _ => Err(Failure::Usage(format!(
            "--quiet-cores: expected a number of cores from 0, got `{text}`"
        ))),
    }
}

fn accuracy(args: &CompareArgs) -> Outcome<Option<Accuracy>> {
    match (args.epochs, &args.data_dir) {
        (None, None) if args.seeds.is_some() => Err(Failure::Usage(
            "--seeds has no effect without --epochs and --data-dir: add them".to_owned(),
        )),
        (None, None) => Ok(None),
        (Some(epochs), Some(folder)) => {
            // Absolute, as records name it and peers may start elsewhere.
            let data_dir = std::path::absolute(folder).map_err(|error| {
                Failure::Usage(format!("--data-dir: {}: {error}", folder.display()))
            })?;
            for split in ["train", "test"] {
                if !data_dir.join(split).is_dir() {
                    return Err(Failure::Usage(format!(
                        "--data-dir: expected a folder with train/<class>/* and test/<class>/*, found no {split} in {}",
                        folder.display()
                    )));
                }
            }
            if let Some(val) = ["val", "valid", "validation"]
                .into_iter()
                .find(|val| data_dir.join(val).is_dir())
            {
                return Err(Failure::Usage(format!(
                    "--data-dir: all frameworks are measured on test, but Lockstep would be on {val} in {}: move it away",
                    folder.display()
                )));
            }
            let found = num_classes(&data_dir.join("train"))?;
            if found != NUM_CLASSES {
                return Err(Failure::Usage(format!(
                    "--data-dir: expected {NUM_CLASSES} class folders in train, as all start from weights for as many classes, \
                     got {found} in {}: give another folder, or leave out --epochs",
                    folder.display()
                )));
            }
            Ok(Some(Accuracy {
                epochs,
                seeds: args.seeds.unwrap_or(3),
                data_dir,
            }))
        }
        (Some(_), None) => Err(Failure::Usage(
            "--epochs needs --data-dir: say where the images are".to_owned(),
        )),
        (None, Some(_)) => Err(Failure::Usage(
            "--data-dir has no effect without --epochs: add that".to_owned(),
        )),
    }
}

/// Folders of a split; hidden ones are none of the trainer's either.
fn num_classes(split: &Path) -> Outcome<usize> {
    let failed = |error: std::io::Error| {
        Failure::Failed(format!("--data-dir: {}: {error}", split.display()))
    };
    let entries = fs::read_dir(split)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(failed)?;
    let is_class = |entry: &&fs::DirEntry| {
        entry.path().is_dir() && !entry.file_name().as_encoded_bytes().starts_with(b".")
    };
    Ok(entries.iter().filter(is_class).count())
}

/// The virtual environments outlive a `cargo clean`: they are large, and serve every comparison.
fn cache_folder() -> Outcome<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let cache = cache.ok_or_else(|| {
        Failure::Usage(
            "neither XDG_CACHE_HOME nor HOME is set: say where the peers live, with --peers-dir"
                .to_owned(),
        )
    })?;
    Ok(cache.join("lockstep/peers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Outcome<Settings> {
        Settings::read(&CompareArgs::parsed(line.split_whitespace())?)
    }

    #[test]
    fn unsaid_the_cpu_table_of_one_network_is_meant() {
        let settings = read("").unwrap();
        assert_eq!(
            (settings.frameworks.len(), settings.models.as_slice()),
            (5, &["resnet20".to_owned()][..])
        );
        assert_eq!(
            (settings.ranks.as_slice(), settings.threads, settings.rounds),
            (&[1, 2][..], 1, 6)
        );
        assert_eq!(
            (settings.launcher, settings.accuracy),
            (Launcher::Plain, None)
        );
    }

    #[test]
    fn lists_are_read_and_one_rank_comes_first() {
        let settings =
            read("--ranks 4,1 --models resnet20,resnet44 --dtype bf16,f32 --with jax").unwrap();
        assert_eq!(settings.ranks, [1, 4]);
        assert_eq!(settings.dtypes, ["bf16", "f32"]);
        assert_eq!(settings.models.len(), 2);
        let settings = read("--models resnet44,resnet50 --with pytorch,horovod").unwrap();
        assert_eq!(settings.models, ["resnet44", "resnet50"]);
        for word in [
            "plain",
            "mpirun",
            "srun",
            "hosts:unlimited",
            "hosts:200mbit",
        ] {
            assert_eq!(launcher(word).unwrap().to_string(), word);
        }
    }

    #[test]
    fn images_of_another_number_of_classes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of_classes = |num: usize| {
            (0..num).for_each(|class| {
                fs::create_dir_all(folder.path().join(format!("train/{class}"))).unwrap()
            });
            read(&format!(
                "--epochs 1 --data-dir {}",
                folder.path().display()
            ))
        };
        fs::create_dir_all(folder.path().join("train/.hidden")).unwrap();
        fs::create_dir_all(folder.path().join("test")).unwrap();
        let [two, ten, eleven] = [2, 10, 11].map(of_classes);
        for (refusal, got) in [(two, "got 2 in"), (eleven, "got 11 in")] {
            let refusal = refusal.unwrap_err();
            let text = refusal.to_string();
            assert!(
                refusal.exit_code() == 2
                    && text.contains("expected 10 class folders")
                    && text.contains(got),
                "{text}"
            );
        }
        assert_eq!(ten.unwrap().accuracy.unwrap().epochs, 1);
    }

    #[test]
    fn a_validation_split_is_refused_since_peers_are_measured_on_test() {
        let folder = tempfile::tempdir().unwrap();
        ["train", "test", "valid"]
            .iter()
            .for_each(|split| fs::create_dir(folder.path().join(split)).unwrap());
        let text = read(&format!(
            "--epochs 1 --data-dir {}",
            folder.path().display()
        ))
        .unwrap_err()
        .to_string();
        assert!(text.contains("Lockstep would be on valid"), "{text}");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_its_flag() {
        let refusals = [
            ("--models resnet21", "--models"),
            ("--models resnet50", "--with pytorch,horovod"),
            (
                "--models resnet20,resnet18 --with pytorch,jax",
                "--with pytorch,horovod",
            ),
            (
                "--models resnet50 --with pytorch --epochs 1 --data-dir /images",
                "--epochs",
            ),
            ("--models resnet20,resnet20", "twice"),
            ("--ranks 0", "--ranks"),
            ("--ranks 1,,2", "--ranks"),
            ("--dtype f16", "--dtype"),
            ("--launcher ssh", "hosts:RATE"),
            ("--launcher hosts:fast", "200mbit"),
            (
                "--launcher hosts:1gbit --ranks 1",
                "one number of --ranks above 1",
            ),
            ("--launcher hosts:1gbit --ranks 1,2,4", "got 1,2,4"),
            ("--peer-settings worst", "--peer-settings"),
            ("--seeds 3", "--epochs"),
            ("--quiet-cores=-1", "--quiet-cores"),
            ("--epochs 2", "--data-dir"),
            ("--data-dir /tmp", "--epochs"),
            ("--epochs 2 --data-dir /nowhere", "no train"),
            ("--steps 3 --warmup-steps 2", "at least 6"),
        ];
        for (line, part) in refusals {
            let refusal = read(line).unwrap_err();
            assert_eq!(refusal.exit_code(), 2, "{line}");
            assert!(refusal.to_string().contains(part), "{line}: {refusal}");
        }
    }
}
