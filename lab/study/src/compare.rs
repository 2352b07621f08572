//! `trainer compare`: a study of the same job in other frameworks.
//!
//! In: frameworks, networks, ranks. Out: a study with a `framework` axis in the output directory; a
//! table.
//! Invariant: the study's file has all that the flags ask for; [`command::measure`] runs it like
//! any other.
//! Source: Hoefler & Belli 2015, Scientific benchmarking of parallel computing systems, rules 1, 2
//! and 4.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use records::{Comparison, ComparisonRow, IMAGENET, Study};
use toml::{Table, Value};

use crate::command;
use crate::directory::{self, DOCUMENT};
use crate::file::StudyFile;
use crate::journal::Records;
use crate::plan;
use crate::session::Options;
use cluster::cores;
use cluster::failure::{Outcome, failed, usage};
use cluster::json;
use cluster::options::{self, Installing};
use cluster::output::say;

const DETAILS: &str = "\
Example: trainer compare --with pytorch,jax --models resnet20,resnet44 --ranks 1,2

The output directory is that of a study: `trainer report` shows it, and the same command resumes it with the same \
program. Environments of other frameworks are made below --peers-dir where they are missing (PyTorch takes 5.5 GB, \
TensorFlow 1.5 GB, JAX 0.6 GB, MXNet 0.3 GB; Horovod is built with mpicxx). A throughput counts only if its losses after \
2 and 5 steps agree with Lockstep's. Each framework competes with the best of its usual settings (layout, compiler, \
allocator, buckets), found by one run of each option; --all-variants prints all. Ratios are taken within a round: the \
table shows their median and an interval that contains the true median with 95 %. Several ranks of Lockstep and of \
Horovod are always started by mpirun or srun.";

/// Small images have 10 classes, and trainings start from weights for as many.
const NUM_CLASSES: usize = 10;

/// Longest epoch of a training, seconds.
const EPOCH_LIMIT_S: usize = 3600;

/// Flags of `trainer compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct CompareArgs {
    /// Other frameworks [default: pytorch,horovod,tensorflow,mxnet,jax]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    with: Option<Vec<String>>,

    /// Networks: resnet<6n+2>; with PyTorch, Horovod also resnet18 to 152; Lockstep only: any
    /// [default: resnet20]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    models: Option<Vec<String>>,

    /// Numbers of ranks [default: 1,2]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = options::count)]
    ranks: Option<Vec<usize>>,

    /// Compute threads of a rank [default: 1]
    #[arg(long, value_name = "N", value_parser = options::count)]
    threads: Option<usize>,

    /// Images of a rank's step [default: 128]
    #[arg(long, value_name = "N", value_parser = options::count)]
    batch_size_per_rank: Option<usize>,

    /// Number formats: f32, bf16 or both [default: f32]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    dtype: Option<Vec<String>>,

    /// Measured steps of a round [default: 8]
    #[arg(long, value_name = "N", value_parser = options::count)]
    steps: Option<usize>,

    /// Steps before the measured ones [default: 2]
    #[arg(long, value_name = "N", value_parser = options::count)]
    warmup_steps: Option<usize>,

    /// Rounds over all frameworks; intervals need 6 [default: 6]
    #[arg(long, value_name = "N", value_parser = options::count)]
    rounds: Option<usize>,

    /// Settings of other frameworks: the best of the usual ones, or defaults [default: best]
    #[arg(long, value_name = "NAME")]
    peer_settings: Option<String>,

    /// Print the settings that lost, too [default: off]
    #[arg(long)]
    all_variants: bool,

    /// Launcher: plain, mpirun, srun, or hosts:RATE for emulated hosts, which need root [default:
    /// plain]
    #[arg(long, value_name = "NAME")]
    launcher: Option<String>,

    /// Epochs of trainings on images, for accuracy [default: none]
    #[arg(long, value_name = "N", value_parser = options::count, requires = "data_dir")]
    epochs: Option<usize>,

    /// Seeds of these trainings [default: 3]
    #[arg(long, value_name = "N", value_parser = options::count, requires = "epochs")]
    seeds: Option<usize>,

    /// Folder of their images: train/<class>/* and test/<class>/* [default: none]
    #[arg(long, value_name = "DIR", requires = "epochs")]
    data_dir: Option<PathBuf>,

    /// Directory of the results [default: runs/comparison]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Remove the results in --output and measure again [default: off]
    #[arg(long)]
    again: bool,

    /// Folder of the environments [default: ~/.cache/lockstep/peers]
    #[arg(long, value_name = "DIR")]
    peers_dir: Option<PathBuf>,

    /// Another built trainer [default: this program]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,

    /// Limit of a measurement, seconds [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = options::count)]
    timeout: Option<usize>,

    /// Cores that others may use during a run [default: 0.2]
    #[arg(long, value_name = "CORES")]
    quiet_cores: Option<f64>,

    /// Attempts at a disturbed or failed measurement [default: 3]
    #[arg(long, value_name = "N", value_parser = options::count)]
    attempts: Option<usize>,

    /// Permission to make environments.
    #[command(flatten)]
    installing: Installing,
}

impl CompareArgs {
    /// Measures what the output directory does not have, in turn with the other frameworks.
    ///
    /// # Errors
    /// Flags that contradict each other; Lockstep's own measurement failed. What another framework
    /// lacks is a gap in the table.
    pub fn run(&self) -> Outcome {
        let text = self.study()?;
        let file = StudyFile::read("trainer compare", &text, &Table::new())?;
        let cells = plan::cells(&file)?;
        let chosen: Vec<_> = cells.iter().collect();
        let trainer = options::trainer(self.trainer.as_deref())?;
        let directory = self
            .output
            .as_deref()
            .unwrap_or(Path::new("runs/comparison"));
        directory::check(directory)?;
        if self.again {
            directory::clear(directory)?;
        }
        let options = Options {
            checks_quiet: true,
            again_disturbed: false,
        };
        let (failed, directory) =
            command::measure(&file, &cells, &chosen, directory, &trainer, options)?;
        let study = json::read(&directory.join(DOCUMENT))?;
        self.print(&study, &directory)?;
        match failed.first() {
            None => Ok(()),
            Some(cell) => Err(failed!(
                "{cell}: Lockstep's own measurement failed. See `why` in {}/records.jsonl.",
                directory.display()
            )),
        }
    }

    fn print(&self, study: &Study, directory: &Path) -> Outcome {
        let records = Records::open(directory)?;
        let comparison = Comparison::of(study, records.lines()).unwrap_or_default();
        say!("\n{}", table(&comparison.rows).trim_end());
        if self.all_variants && !comparison.sweep.is_empty() {
            say!("\n{}", table(&comparison.sweep).trim_end());
        }
        for course in &comparison.accuracy {
            let last = course.epochs.last().and_then(|epoch| epoch.test_top1);
            let result = match (last, &course.gap) {
                (Some(share), _) => format!("{:.1} % of the test images", 100.0 * share),
                (None, gap) => format!("gap: {}", gap.as_deref().unwrap_or("no epochs")),
            };
            say!(
                "{} {} {}, seed {}: {result}",
                course.framework,
                course.model,
                course.dtype,
                course.seed
            );
        }
        say!(
            "\nwritten: {0}; see it with `trainer report {0}`",
            directory.display()
        );
        Ok(())
    }

    /// Returns the text of the study's file.
    fn study(&self) -> Outcome<String> {
        let given = |list: &Option<Vec<String>>, default: &str| -> Vec<String> {
            let default = || default.split(',').map(str::to_owned).collect();
            let words = list.clone().unwrap_or_else(default).into_iter();
            words.map(|word| word.trim().to_owned()).collect()
        };
        let mut frameworks = vec!["lockstep".to_owned()];
        frameworks.extend(given(&self.with, "pytorch,horovod,tensorflow,mxnet,jax"));
        // `--with ""` measures Lockstep only.
        frameworks.retain(|name| !name.is_empty());
        let frameworks = Value::from(frameworks);
        let models = given(&self.models, "resnet20");
        let dtypes = Value::from(given(&self.dtype, "f32"));
        let ranks = self.ranks.as_deref().unwrap_or(&[1, 2]);
        let model = |name: &String| {
            let size = match IMAGENET.contains(&name.as_str()) {
                true => ", image_size = 224, num_classes = 1000",
                false => "",
            };
            format!("{{ model = {}{size} }}", Value::from(name.as_str()))
        };
        let jobs: Vec<String> = models.iter().map(model).collect();
        let launcher = self.launcher.as_deref().unwrap_or("plain");
        let place = match launcher.contains(':') {
            true => "network",
            false => "launcher",
        };
        let shared = format!(
            "framework = {frameworks}\ndtype = {dtypes}\nbatch_size_per_rank = {}\n",
            self.batch_size_per_rank.unwrap_or(128)
        );
        let mut limit_s = self.timeout.unwrap_or(300);
        let mut trainings = String::new();
        if let Some((epochs, data_dir)) = self.epochs.zip(self.data_dir.as_deref()) {
            limit_s = limit_s.max(EPOCH_LIMIT_S * epochs);
            trainings = format!(
                "[[matrix]]\nkind = \"train\"\n{shared}model = {}\nthreads = {}\nepochs = {epochs}\n\
                 data_dir = {}\nrepetitions = {}\n",
                Value::from(models),
                cores::available(),
                images(data_dir)?,
                self.seeds.unwrap_or(3)
            );
        }
        let folder = match &self.peers_dir {
            Some(folder) => format!("folder = {}\n", absolute("--peers-dir", folder)?),
            None => String::new(),
        };
        Ok(format!(
            "name = \"comparison\"\n\
             title = \"The same job in other frameworks\"\n\
             about = \"Written by `trainer compare`.\"\n\
             repetitions = {}\nattempts = {}\nquiet_cores = {:?}\nquiet_patience_s = 30\nlimit_s = {limit_s}\n\
             \n[peers]\nsettings = {}\ninstall = {}\n{folder}\
             \n[[matrix]]\n{shared}model = [{}]\nranks = {ranks:?}\nthreads = {}\nsteps = {}\nwarmup_steps = {}\n\
             {place} = {}\n\n{trainings}",
            self.rounds.unwrap_or(6),
            self.attempts.unwrap_or(3),
            self.quiet_cores.unwrap_or(0.2),
            Value::from(self.peer_settings.as_deref().unwrap_or("best")),
            !self.installing.no_install,
            jobs.join(", "),
            self.threads.unwrap_or(1),
            self.steps.unwrap_or(8),
            self.warmup_steps.unwrap_or(2),
            Value::from(launcher)
        ))
    }
}

/// Returns the folder of the trainings' images.
fn images(folder: &Path) -> Outcome<Value> {
    let refused = |text: String| usage!("--data-dir: {}: {text}", folder.display());
    for split in ["train", "test"] {
        if !folder.join(split).is_dir() {
            return Err(refused(format!(
                "no {split} (expected train/<class>/* and test/<class>/*)"
            )));
        }
    }
    let failed = |error: std::io::Error| refused(error.to_string());
    let mut num_classes = 0;
    for entry in fs::read_dir(folder.join("train")).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        num_classes += usize::from(entry.path().is_dir() && !is_hidden);
    }
    if num_classes != NUM_CLASSES {
        return Err(refused(format!(
            "the initial weights have {NUM_CLASSES} classes (expected {NUM_CLASSES} class folders \
             in train, got {num_classes})"
        )));
    }
    absolute("--data-dir", folder)
}

/// Returns an absolute path: records name the folder, and peers may start elsewhere.
fn absolute(flag: &str, path: &Path) -> Outcome<Value> {
    let path =
        std::path::absolute(path).map_err(|error| usage!("{flag}: {}: {error}", path.display()))?;
    Ok(Value::from(path.display().to_string()))
}

/// Returns the rows as Markdown: in each job ours first, then what counts by its speed, then the
/// rest.
fn table(rows: &[ComparisonRow]) -> String {
    let mut text = "\
| model | dtype | ranks | framework | launcher | images/s | of Lockstep (95 %) | speedup (95 %) | memory, MiB | note |
|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    let mut sorted: Vec<&ComparisonRow> = rows.iter().collect();
    let speed = |row: &ComparisonRow| row.speed().unwrap_or(0.0);
    sorted.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    sorted.sort_by_key(|row| {
        let job = (row.model.clone(), row.dtype.clone(), row.ranks);
        (job, !row.is_ours(), !row.counts)
    });
    for row in sorted {
        let options = row.setting.iter();
        let setting: Vec<String> = options
            .map(|(name, option)| format!(" {name} {option}"))
            .collect();
        let estimate = |estimate: Option<records::Estimate>| {
            estimate.map_or("–".to_owned(), |of| of.shown(2))
        };
        let memory = row.peak_memory_bytes();
        let mut notes = Vec::new();
        if let Some(gap) = &row.gap {
            notes.push(format!("gap: {}", gap.replace('|', "/")));
        }
        match row.loss_agrees {
            Some(false) => notes.push("other losses: does not count".to_owned()),
            None if !row.rounds.is_empty() => {
                notes.push("no losses to compare with: does not count".to_owned())
            }
            _ => {}
        }
        let disturbed = row.num_disturbed();
        if disturbed > 0 {
            notes.push(format!(
                "{disturbed} of {} rounds disturbed",
                row.rounds.len()
            ));
        }
        text.push_str(&format!(
            "| {} | {} | {}x{} | {}{} | {} | {} | {} | {} | {} | {} |\n",
            row.model,
            row.dtype,
            row.ranks,
            row.threads,
            row.framework,
            setting.join(","),
            row.launcher,
            row.speed().map_or("–".to_owned(), records::rate),
            estimate(row.ratio),
            estimate(row.speedup),
            memory.map_or("–".to_owned(), |bytes| (bytes >> 20).to_string()),
            notes.join("; "),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// A command line with only this command.
    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        compare: CompareArgs,
    }

    fn args(line: &str) -> Outcome<CompareArgs> {
        let words = std::iter::once("compare").chain(line.split_whitespace());
        let parsed = CommandLine::try_parse_from(words);
        let parsed = parsed.map_err(|error| usage!("{error}"))?;
        Ok(parsed.compare)
    }

    fn cells(line: &str) -> Outcome<Vec<crate::cell::Cell>> {
        let text = args(line)?.study()?;
        plan::cells(&StudyFile::read("trainer compare", &text, &Table::new())?)
    }

    fn ids(line: &str) -> Vec<String> {
        cells(line)
            .unwrap()
            .into_iter()
            .map(|cell| cell.id)
            .collect()
    }

    #[test]
    fn a_command_line_is_a_study_with_a_framework_axis() {
        assert_eq!(
            cells("").unwrap().len(),
            6 * 2,
            "all frameworks on 1 and 2 ranks"
        );
        assert_eq!(cells("").unwrap()[0].repetitions, 6);
        assert_eq!(
            ids("--with jax --ranks 2,1 --dtype bf16"),
            [
                "lockstep-resnet20-bf16-b128-r2-machine",
                "lockstep-resnet20-bf16-b128-r1-machine",
                "jax-resnet20-bf16-b128-r2-machine",
                "jax-resnet20-bf16-b128-r1-machine",
            ]
        );
        let ours = cells("--with= --models vit-tiny,cifar-resnet18 --ranks 1").unwrap();
        let words = ours[0].arguments.join(" ");
        assert!(words.contains("--model vit-tiny"), "{words}");
        assert_eq!(ours.len(), 2);
        let on_hosts = cells("--with pytorch --ranks 1,2 --launcher hosts:1gbit").unwrap();
        let launchers: Vec<String> = on_hosts
            .iter()
            .map(|cell| cell.setting("launcher"))
            .collect();
        assert_eq!(launchers, ["plain", "hosts", "plain", "hosts"]);
        let imagenet =
            cells("--models resnet44,resnet50 --with pytorch,horovod --ranks 1").unwrap();
        let arguments = imagenet.iter().map(|cell| cell.arguments.join(" "));
        let arguments: Vec<String> = arguments.filter(|line| line.contains("224")).collect();
        assert!(arguments[0].contains("--model resnet50"), "{arguments:?}");
        assert_eq!(arguments.len(), 1, "peers read the job");
    }

    #[test]
    fn trainings_use_the_test_split_despite_a_val_split_and_need_ten_classes() {
        let folder = tempfile::tempdir().unwrap();
        let line = format!(
            "--with jax --epochs 2 --data-dir {}",
            folder.path().display()
        );
        for split in ["train/.hidden", "test", "val"] {
            fs::create_dir_all(folder.path().join(split)).unwrap();
        }
        for (num_classes, got) in [(2, Some("got 2")), (10, None), (11, Some("got 11"))] {
            for class in 0..num_classes {
                let class = folder.path().join(format!("train/{class}"));
                fs::create_dir_all(class).unwrap();
            }
            match (cells(&line), got) {
                (Ok(cells), None) => {
                    let ours = &cells[4];
                    let words = ours.arguments.join(" ");
                    assert!(
                        words.starts_with("train ") && words.contains("--eval-split test"),
                        "{words}"
                    );
                    assert_eq!(ours.repetitions, 3, "a repetition is a seed");
                    assert!(
                        cells[5]
                            .arguments
                            .join(" ")
                            .contains("--epochs 2 --data-dir")
                    );
                }
                (Err(failure), Some(got)) => {
                    assert!(
                        failure.exit_code() == 2 && failure.to_string().contains(got),
                        "{failure}"
                    );
                }
                (cells, _) => panic!("{num_classes} classes: {cells:?}"),
            }
        }
    }

    #[test]
    fn a_job_that_cannot_be_measured_is_refused_with_its_key() {
        for (line, part) in [
            ("--models resnet21", "model: expected resnet<6n+2>"),
            ("--models resnet21 --with=", "model: expected resnet<6n+2>"),
            ("--models vit-tiny", "such as vit-tiny, have no script"),
            ("--models resnet50", "expected pytorch or horovod"),
            (
                "--models resnet20,resnet20",
                "two cells are `lockstep-resnet20-f32-b128-r1-machine`",
            ),
            (
                "--models resnet20,",
                "a value is required for '--models <LIST>'",
            ),
            (
                "--with caffe",
                "framework: unknown variant `caffe`, expected one of `lockstep`, `pytorch`",
            ),
            (
                "--ranks 0",
                "invalid value '0' for '--ranks <LIST>': expected a whole number from 1",
            ),
            ("--ranks 1,,2", "--ranks"),
            ("--dtype f16", "dtype"),
            (
                "--launcher ssh",
                "launcher: unknown variant `ssh`, expected one of `plain`, `mpirun`",
            ),
            ("--launcher hosts:fast --ranks 2", "200mbit"),
            ("--peer-settings worst", "unknown variant `worst`"),
            ("--seeds 3", "--epochs"),
            ("--quiet-cores=-1", "quiet_cores"),
            ("--epochs 2", "--data-dir"),
            ("--data-dir /tmp", "--epochs"),
            ("--epochs 2 --data-dir /nowhere", "no train (expected"),
            ("--steps 3 --warmup-steps 2", "at least 6"),
        ] {
            let failure = cells(line).unwrap_err();
            assert_eq!(failure.exit_code(), 2, "{line}");
            assert!(failure.to_string().contains(part), "{line}: {failure}");
        }
    }

    #[test]
    fn a_missing_framework_is_a_gap_with_its_reason_and_so_is_a_failure_of_lockstep() {
        let folder = tempfile::tempdir().unwrap();
        let trainer = folder.path().join("trainer");
        let script = "#!/bin/sh\nexit 0\n";
        cluster::run_directory::write(&trainer, script).unwrap();
        std::process::Command::new("chmod")
            .arg("+x")
            .arg(&trainer)
            .status()
            .unwrap();
        let line = format!(
            "--with jax,horovod --ranks 1 --no-install --peers-dir {0}/peers --output {0}/out --trainer {0}/trainer --quiet-cores 1e9 --rounds 1 --attempts 1",
            folder.path().display()
        );
        let failure = args(&line).unwrap().run().unwrap_err().to_string();
        assert!(failure.contains("own measurement failed"), "{failure}");
        let out = folder.path().join("out");
        let study: Study = json::read(&out.join(DOCUMENT)).unwrap();
        let records = Records::open(&out).unwrap();
        let rows = Comparison::of(&study, records.lines()).unwrap().rows;
        let gap = |framework: &str| {
            let row = rows.iter().find(|row| row.framework == framework).unwrap();
            row.gap.clone().unwrap()
        };
        assert!(gap("JAX").contains("not installed"), "{}", gap("JAX"));
        assert!(
            gap("Horovod").contains("it is PyTorch"),
            "{}",
            gap("Horovod")
        );
        assert!(gap("Lockstep").contains("JSON"), "{}", gap("Lockstep"));
    }

    #[test]
    fn lockstep_comes_first_then_rows_that_count_by_speed_then_the_rest_with_a_reason() {
        let row = |framework: &str, speed: f64, counts: bool, gap: Option<&str>| ComparisonRow {
            framework: framework.to_owned(),
            counts,
            loss_agrees: Some(counts),
            gap: gap.map(str::to_owned),
            rounds: match gap {
                None => vec![records::AttemptRecord {
                    result: serde_json::json!({ "images_per_second": speed }),
                    ..Default::default()
                }],
                Some(_) => Vec::new(),
            },
            ..ComparisonRow::default()
        };
        let rows = [
            row("MXNet", 0.0, true, Some("no Python | 3.9")),
            row("JAX", 900.0, false, None),
            row("TensorFlow", 50.0, true, None),
            row("PyTorch DDP", 70.0, true, None),
            row("Lockstep", 60.0, true, None),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        for (line, name) in
            lines
                .iter()
                .zip(["Lockstep", "PyTorch DDP", "TensorFlow", "MXNet", "JAX"])
        {
            assert!(line.contains(&format!("| {name} |")), "{line}");
            assert_eq!(line.matches('|').count(), 11, "{line}");
        }
        assert!(lines[3].contains("gap: no Python / 3.9") && lines[4].contains("does not count"));
    }
}
