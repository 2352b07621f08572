//! The test accuracy after the same epochs on the same images.
//!
//! In: a folder of images, initial weights. Out: the records `accuracy` of `comparison.json`.
//! Invariant: one rank with all cores; the same weights at the start, the same recipe: batches of the job's size, crop and flip, SGD
//! from 0.1 along half a cosine. Order, crops and rounding of decoded pixels are each framework's own, so accuracies agree as those of
//! two seeds do.

use std::fs;
use std::path::Path;
use std::time::Duration;

use records::{Course, CourseEpoch, PeerResult};
use serde_json::Value;

use super::block::read;
use super::measure::{Bench, Contender, fresh};
use super::run::Processes;
use super::settings::{Accuracy, Launcher};
use super::start::Program;
use crate::cores;

/// The most that an epoch may take.
const EPOCH_LIMIT: Duration = Duration::from_secs(3600);

/// Of the training images of CIFAR-10; `peers/images.py` has the same.
const NORMALIZATION: [&str; 4] =
    ["--normalize-mean", "0.4914,0.4822,0.4465", "--normalize-std", "0.2470,0.2435,0.2616"];

/// Trains on images: the record, with a gap where it did not succeed.
pub(super) fn record(bench: &Bench<'_>, contender: Contender, model: &str, dtype: &str, accuracy: &Accuracy) -> Course {
    let course = Course {
        framework: contender.title().to_owned(),
        model: model.to_owned(),
        dtype: dtype.to_owned(),
        threads: cores::available() as u64,
        num_epochs: accuracy.epochs as u64,
        data_dir: accuracy.data_dir.display().to_string(),
        ..Course::default()
    };
    match trained(bench, contender, model, dtype, accuracy) {
        Ok((version, epochs)) => Course { version: Some(version), epochs, ..course },
        Err(reason) => Course { gap: Some(reason), ..course },
    }
}

/// Whether there is a record of this already.
pub(super) fn is_there(
    records: &[Course],
    contender: Contender,
    model: &str,
    dtype: &str,
    accuracy: &Accuracy,
) -> bool {
    records.iter().any(|record| {
        record.framework == contender.title()
            && record.model == model
            && record.dtype == dtype
            && record.num_epochs == accuracy.epochs as u64
            && Path::new(&record.data_dir) == accuracy.data_dir
    })
}

fn trained(
    bench: &Bench<'_>,
    contender: Contender,
    model: &str,
    dtype: &str,
    accuracy: &Accuracy,
) -> Result<(String, Vec<CourseEpoch>), String> {
    let job = bench.job(model, 1)?;
    let folder = bench.settings.output.join(format!("runs/{model}-{dtype}-accuracy-{}", contender.word()));
    fresh(&folder)?;
    let threads = cores::available();
    let program = match contender {
        Contender::Ours => Program {
            file: bench.trainer.clone(),
            words: our_words(bench, model, dtype, accuracy, &job, &folder),
            ranks: 1,
            threads,
            needs_mpi: true,
        },
        Contender::Peer(framework) => {
            if let Some(refusal) = framework.refusal(dtype, 1) {
                return Err(refusal.to_owned());
            }
            let mut program = Program::peer(framework, bench.python(framework)?, bench.scripts, 1, threads)
                .map_err(|failure| failure.to_string())?;
            let paths = [("--job", job.as_path()), ("--output", &folder), ("--data-dir", &accuracy.data_dir)];
            program
                .words
                .extend(paths.iter().flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]));
            program.words.extend([
                "--dtype".to_owned(),
                dtype.to_owned(),
                "--epochs".to_owned(),
                accuracy.epochs.to_string(),
            ]);
            program
        }
    };
    let ranks = program.commands(Launcher::Plain, None).map_err(|failure| failure.to_string())?;
    let limit = EPOCH_LIMIT * accuracy.epochs as u32;
    Processes { ranks, beside: Vec::new() }.run(&folder, limit, &format!("compare-{}", std::process::id()))?;
    match contender {
        Contender::Ours => Ok((env!("CARGO_PKG_VERSION").to_owned(), our_epochs(&folder.join("run/metrics.jsonl"))?)),
        Contender::Peer(_) => {
            let told: PeerResult = read(&folder.join("rank-0.json"))?;
            Ok((told.version, told.epochs))
        }
    }
}

fn our_words(
    bench: &Bench<'_>,
    model: &str,
    dtype: &str,
    accuracy: &Accuracy,
    job: &Path,
    folder: &Path,
) -> Vec<String> {
    let batch = bench.settings.batch_size_per_rank.to_string();
    let (epochs, threads) = (accuracy.epochs.to_string(), cores::available().to_string());
    let paths = [
        ("--data-dir", accuracy.data_dir.clone()),
        ("--weights", job.join("weights.safetensors")),
        ("--output-dir", folder.join("run")),
    ];
    let mut words: Vec<String> = ["train", "--device", "flex", "--dataset", "image-folder", "--augment", "crop-flip"]
        .into_iter()
        .chain(["--model", model, "--dtype", dtype, "--epochs", &epochs, "--threads", &threads])
        .chain(["--global-batch-size", &batch, "--learning-rate", "0.1", "--momentum", "0.9", "--weight-decay", "1e-4"])
        .chain(["--schedule", "cosine", "--warmup-epochs", "0"])
        .chain(NORMALIZATION)
        .map(str::to_owned)
        .collect();
    words.extend(paths.iter().flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]));
    words
}

/// Our epochs in the form of the peers'.
fn our_epochs(metrics: &Path) -> Result<Vec<CourseEpoch>, String> {
    let text = fs::read_to_string(metrics).map_err(|error| format!("{}: {error}", metrics.display()))?;
    let (mut epochs, mut elapsed_s) = (Vec::new(), 0.0);
    for line in text.lines() {
        let told: Value = serde_json::from_str(line).map_err(|error| format!("{}: {error}", metrics.display()))?;
        elapsed_s += told["seconds_total"].as_f64().unwrap_or(f64::NAN);
        epochs.push(CourseEpoch {
            epoch: told["epoch"].as_u64().map_or(0, |epoch| epoch + 1),
            train_loss: told["train_loss"].as_f64(),
            test_top1: told["test_top1"].as_f64(),
            elapsed_s: Some(elapsed_s),
            images_per_second: told["images_per_second"].as_f64(),
        });
    }
    Ok(epochs)
}

#[cfg(test)]
mod tests {
    use super::super::framework::OURS;
    use super::*;

    #[test]
    fn our_epochs_are_numbered_from_one_and_their_seconds_add_up() {
        let file = std::env::temp_dir().join(format!("lockstep-jobs-{}-metrics.jsonl", std::process::id()));
        let line = r#"{"epoch":0,"train_loss":1.5,"test_top1":0.25,"seconds_total":9.5,"images_per_second":700.0}"#;
        fs::write(&file, format!("{line}\n{}\n", line.replace("\"epoch\":0", "\"epoch\":1"))).unwrap();
        let epochs = our_epochs(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let expected = |epoch: u64, elapsed_s: f64| CourseEpoch {
            epoch,
            train_loss: Some(1.5),
            test_top1: Some(0.25),
            elapsed_s: Some(elapsed_s),
            images_per_second: Some(700.0),
        };
        assert_eq!(epochs, [expected(1, 9.5), expected(2, 19.0)]);
        assert!(our_epochs(&file).is_err());
    }

    #[test]
    fn a_record_of_other_epochs_or_images_is_another() {
        let accuracy = Accuracy { epochs: 5, data_dir: "x".into() };
        let (framework, model, dtype) = (OURS.to_owned(), "resnet20".to_owned(), "f32".to_owned());
        let data_dir = "x".to_owned();
        let records = [Course { framework, model, dtype, num_epochs: 5, data_dir, ..Course::default() }];
        assert!(is_there(&records, Contender::Ours, "resnet20", "f32", &accuracy));
        let more = Accuracy { epochs: 6, ..accuracy.clone() };
        let elsewhere = Accuracy { data_dir: "y".into(), ..accuracy };
        assert!(!is_there(&records, Contender::Ours, "resnet20", "f32", &more));
        assert!(!is_there(&records, Contender::Ours, "resnet20", "f32", &elsewhere));
    }
}
