//! The test accuracy after the same epochs on the same images.
//!
//! In: a folder of images, initial weights. Out: the records `accuracy` of `comparison.json`.
//! Invariant: one rank with all cores; for each seed the same weights at the start, the same recipe: batches of the job's size, crop and
//! flip, SGD from 0.1 along half a cosine. Order, crops and rounding of decoded pixels are each framework's own, so accuracies agree as
//! those of two seeds do. All decode before the clock starts; images/s are the training images over the epoch without its evaluation.

use std::path::Path;
use std::time::Duration;

use records::{Course, CourseEpoch, PeerResult};
use serde_json::Value;

use super::block::read;
use super::choice::Setting;
use super::framework::Framework;
use super::measure::{Bench, Contender, fresh};
use super::run::Processes;
use super::settings::{Accuracy, Launcher};
use super::start::Program;
use cluster::cores;

/// The most that an epoch may take.
const EPOCH_LIMIT: Duration = Duration::from_secs(3600);

/// Of the training images of CIFAR-10; `peers/images.py` has the same.
const NORMALIZATION: [&str; 4] = [
    "--normalize-mean",
    "0.4914,0.4822,0.4465",
    "--normalize-std",
    "0.2470,0.2435,0.2616",
];

/// One training of one contender.
pub(super) struct Training<'a> {
    pub(super) contender: Contender,
    pub(super) model: &'a str,
    pub(super) dtype: &'a str,
    pub(super) seed: u64,
    pub(super) wanted: &'a Accuracy,
}

impl Training<'_> {
    /// Trains in this setting: the record, with a gap where it did not succeed.
    pub(super) fn record(&self, bench: &Bench<'_>, setting: &Setting) -> Course {
        let course = Course {
            framework: self.contender.title().to_owned(),
            model: self.model.to_owned(),
            dtype: self.dtype.to_owned(),
            threads: cores::available() as u64,
            num_epochs: self.wanted.epochs as u64,
            seed: self.seed,
            data_dir: self.wanted.data_dir.display().to_string(),
            ..Course::default()
        };
        match self.trained(bench, setting) {
            Ok((version, epochs)) => Course {
                version: Some(version),
                epochs,
                ..course
            },
            Err(reason) => Course {
                gap: Some(reason),
                ..course
            },
        }
    }

    /// Whether there is a record of this already.
    pub(super) fn is_there(&self, records: &[Course]) -> bool {
        records.iter().any(|record| {
            (
                record.framework.as_str(),
                record.model.as_str(),
                record.dtype.as_str(),
                record.seed,
            ) == (self.contender.title(), self.model, self.dtype, self.seed)
                && record.num_epochs == self.wanted.epochs as u64
                && Path::new(&record.data_dir) == self.wanted.data_dir
        })
    }

    fn trained(
        &self,
        bench: &Bench<'_>,
        setting: &Setting,
    ) -> Result<(String, Vec<CourseEpoch>), String> {
        let job = bench.job(self.model, 1, self.seed)?;
        let Training {
            model, dtype, seed, ..
        } = self;
        let word = self.contender.word();
        let folder = bench
            .settings
            .output
            .join(format!("runs/{model}-{dtype}-accuracy-{word}-s{seed}"));
        fresh(&folder)?;
        let program = match self.contender {
            Contender::Ours => Program {
                file: bench.trainer.clone(),
                words: self.our_words(bench, &job, &folder),
                ranks: 1,
                threads: cores::available(),
                needs_mpi: true,
                environment: Vec::new(),
            },
            Contender::Peer(framework) => self.peer(framework, bench, setting, &job, &folder)?,
        };
        let ranks = program
            .commands(Launcher::Plain, None, None)
            .map_err(|failure| failure.to_string())?;
        let limit = EPOCH_LIMIT * u32::try_from(self.wanted.epochs).unwrap_or(u32::MAX);
        Processes {
            ranks,
            beside: Vec::new(),
        }
        .run(&folder, limit, &format!("compare-{}", std::process::id()))?;
        match self.contender {
            Contender::Ours => Ok((
                env!("CARGO_PKG_VERSION").to_owned(),
                our_epochs(&folder.join("run/metrics.jsonl"))?,
            )),
            Contender::Peer(_) => {
                let told: PeerResult = read(&folder.join("rank-0.json"))?;
                Ok((told.version, told.epochs))
            }
        }
    }

    fn peer(
        &self,
        framework: Framework,
        bench: &Bench<'_>,
        setting: &Setting,
        job: &Path,
        folder: &Path,
    ) -> Result<Program, String> {
        if let Some(refusal) = framework.refusal(self.dtype, 1) {
            return Err(refusal.to_owned());
        }
        let threads = cores::available();
        let mut program = Program::peer(
            framework,
            bench.python(framework)?,
            bench.scripts,
            1,
            threads,
            None,
        )
        .map_err(|failure| failure.to_string())?;
        program.set(setting)?;
        let paths = [
            ("--job", job),
            ("--output", folder),
            ("--data-dir", &self.wanted.data_dir),
        ];
        program.words.extend(
            paths
                .iter()
                .flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]),
        );
        let pairs = [
            ("--dtype", self.dtype.to_owned()),
            ("--epochs", self.wanted.epochs.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        program.words.extend(
            pairs
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value]),
        );
        Ok(program)
    }

    fn our_words(&self, bench: &Bench<'_>, job: &Path, folder: &Path) -> Vec<String> {
        let batch = bench.settings.batch_size_per_rank.to_string();
        let (epochs, threads) = (
            self.wanted.epochs.to_string(),
            cores::available().to_string(),
        );
        let seed = self.seed.to_string();
        let paths = [
            ("--data-dir", self.wanted.data_dir.clone()),
            ("--weights", job.join("weights.safetensors")),
            ("--output-dir", folder.join("run")),
        ];
        let mut words: Vec<String> = [
            "train",
            "--device",
            "flex",
            "--dataset",
            "image-folder",
            "--augment",
            "crop-flip",
        ]
        .into_iter()
        .chain([
            "--model",
            self.model,
            "--dtype",
            self.dtype,
            "--epochs",
            &epochs,
            "--threads",
            &threads,
        ])
        .chain([
            "--global-batch-size",
            &batch,
            "--learning-rate",
            "0.1",
            "--momentum",
            "0.9",
        ])
        .chain([
            "--weight-decay",
            "1e-4",
            "--schedule",
            "cosine",
            "--warmup-epochs",
            "0",
            "--seed",
            &seed,
        ])
        .chain(NORMALIZATION)
        .map(str::to_owned)
        .collect();
        words.extend(
            paths
                .iter()
                .flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]),
        );
        words
    }
}

/// Our epochs in the form of the peers'.
fn our_epochs(metrics: &Path) -> Result<Vec<CourseEpoch>, String> {
    let text = records::file::read_to_string(metrics)
        .map_err(|error| format!("{}: {error}", metrics.display()))?;
    let (mut epochs, mut elapsed_s) = (Vec::new(), 0.0);
    for line in text.lines() {
        let told: Value = serde_json::from_str(line)
            .map_err(|error| format!("{}: {error}", metrics.display()))?;
        let of = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        elapsed_s += of(&told["seconds_total"]);
        let train_s = of(&told["seconds_total"]) - of(&told["seconds"]["evaluation"]);
        epochs.push(CourseEpoch {
            epoch: told["epoch"]
                .as_u64()
                .map_or(0, |epoch| epoch.saturating_add(1)),
            train_loss: told["train_loss"].as_f64(),
            test_top1: told["test"]["top1"].as_f64(),
            elapsed_s: Some(elapsed_s),
            images_per_second: told["train_num_samples"]
                .as_f64()
                .map(|count| count / train_s),
        });
    }
    Ok(epochs)
}

#[cfg(test)]
mod tests {
    use super::super::framework::OURS;
    use super::*;
    use std::fs;

    #[test]
    fn our_epochs_are_numbered_from_one_and_their_seconds_add_up() {
        let file = std::env::temp_dir().join(format!(
            "lockstep-jobs-{}-metrics.jsonl",
            std::process::id()
        ));
        let line = r#"{"epoch":0,"train_loss":1.5,"test":{"top1":0.25},"train_num_samples":7000,"seconds_total":12.0,"seconds":{"evaluation":2.0}}"#;
        fs::write(
            &file,
            format!("{line}\n{}\n", line.replace("\"epoch\":0", "\"epoch\":1")),
        )
        .unwrap();
        let epochs = our_epochs(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let expected = |epoch: u64, elapsed_s: f64| CourseEpoch {
            epoch,
            train_loss: Some(1.5),
            test_top1: Some(0.25),
            elapsed_s: Some(elapsed_s),
            images_per_second: Some(700.0),
        };
        assert_eq!(epochs, [expected(1, 12.0), expected(2, 24.0)]);
        assert!(our_epochs(&file).is_err());
    }

    #[test]
    fn a_record_of_other_epochs_or_images_is_another() {
        let accuracy = Accuracy {
            epochs: 5,
            seeds: 3,
            data_dir: "x".into(),
        };
        let (framework, model, dtype) = (OURS.to_owned(), "resnet20".to_owned(), "f32".to_owned());
        let data_dir = "x".to_owned();
        let records = [Course {
            framework,
            model,
            dtype,
            num_epochs: 5,
            seed: 1,
            data_dir,
            ..Course::default()
        }];
        let is_there = |wanted: &Accuracy, seed: u64| {
            Training {
                contender: Contender::Ours,
                model: "resnet20",
                dtype: "f32",
                seed,
                wanted,
            }
            .is_there(&records)
        };
        assert!(is_there(&accuracy, 1) && !is_there(&accuracy, 2));
        assert!(!is_there(
            &Accuracy {
                epochs: 6,
                ..accuracy.clone()
            },
            1
        ));
        assert!(!is_there(
            &Accuracy {
                data_dir: "y".into(),
                ..accuracy
            },
            1
        ));
    }
}
