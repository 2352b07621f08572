//! `trainer compare`: the same job in other frameworks, in turn with ours.
//!
//! In: frameworks, networks, ranks. Out: `comparison.json` in the output directory, a table on standard output.
//! Invariant: all have the same network, initial weights, batches, optimizer and steps, written once by our trainer. Each other framework
//! competes in the best of its usual settings, ours in its defaults. In each round all do the job once, in an order of its own; what
//! cannot be had is a named gap. The scripts of the other
//! frameworks, `peers/` of the repository, travel inside this program.
//! Source: Hoefler & Belli 2015, Scientific benchmarking of parallel computing systems, rules 1, 2 and 4.

mod accuracy;
mod block;
mod choice;
mod document;
mod framework;
mod install;
mod measure;
mod row;
mod run;
mod scripts;
mod settings;
mod start;
mod sweep;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use clap::{Args, Parser};

use self::accuracy::Training;
use self::choice::Setting;
use self::document::{Document, row_of};
use self::install::Installer;
use self::measure::{Bench, Contender};
use self::row::{Key, Row};
use self::scripts::Scripts;
use self::settings::{Launcher, Settings};
use crate::directory;
use crate::environment;
use crate::machine;
use cluster::failure::{Failure, Outcome};
use cluster::hosts::{self, Hosts};
use cluster::mpirun::Mpirun;
use cluster::options::{self, Installing};
use cluster::output::say;
use cluster::run_directory;

const DETAILS: &str = "\
Example: trainer compare --with pytorch,jax --models resnet20,resnet44 --ranks 1,2
The other frameworks live in virtual environments below --peers-dir, which are made where they are missing (PyTorch takes
5.5 GB, TensorFlow 1.5 GB, JAX 0.6 GB, MXNet 0.3 GB; Horovod is built, with mpicxx). A throughput counts only if the losses
after 2 and 5 steps are ours. Each framework first tries its usual settings (layout, compiler, allocator, buckets), chosen
greedily, one run each, and competes with the best; --all-variants prints all. Ratios are taken in each round: their median, and
an interval that holds the true median with 95 %. Several ranks of ours and of Horovod are always started by mpirun or srun.
The same --output goes on with a half-done comparison of the same program, in the settings that were chosen; a framework that is
added later is measured then, and has a ratio only in rounds within an hour of ours.";

/// Flags of `trainer compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct CompareArgs {
    /// Other frameworks: pytorch,horovod,tensorflow,mxnet,jax or some [default: all]
    #[arg(long, value_name = "LIST")]
    with: Option<String>,

    /// Networks: resnet<6n+2>, or, beside PyTorch and Horovod, ImageNet's resnet18, 34, 50, 101, 152 at 224 pixels [default: resnet20]
    #[arg(long, value_name = "LIST")]
    models: Option<String>,

    /// Numbers of ranks [default: 1,2]
    #[arg(long, value_name = "LIST")]
    ranks: Option<String>,

    /// Compute threads of a rank [default: 1]
    #[arg(long, value_name = "N", value_parser = options::count)]
    threads: Option<usize>,

    /// Images of a rank's step [default: 128]
    #[arg(long, value_name = "N", value_parser = options::count)]
    batch_size_per_rank: Option<usize>,

    /// F32, bf16 or both [default: f32]
    #[arg(long, value_name = "LIST")]
    dtype: Option<String>,

    /// Measured steps of a round [default: 8]
    #[arg(long, value_name = "N", value_parser = options::count)]
    steps: Option<usize>,

    /// Steps before them [default: 2]
    #[arg(long, value_name = "N", value_parser = options::count)]
    warmup_steps: Option<usize>,

    /// Rounds over all frameworks; intervals need 6 [default: 6]
    #[arg(long, value_name = "N", value_parser = options::count)]
    rounds: Option<usize>,

    /// Best: try each framework's usual settings first; defaults [default: best]
    #[arg(long, value_name = "NAME")]
    peer_settings: Option<String>,

    /// Print the settings that lost, too [default: off]
    #[arg(long)]
    all_variants: bool,

    /// Plain, mpirun, srun, or hosts:RATE as in hosts:1gbit: each rank on an emulated host (root; not MXNet) [default: plain]
    #[arg(long, value_name = "NAME")]
    launcher: Option<String>,

    /// Train on images too, for accuracy [default: none]
    #[arg(long, value_name = "N", value_parser = options::count)]
    epochs: Option<usize>,

    /// With --epochs: how many seeds [default: 3]
    #[arg(long, value_name = "N", value_parser = options::count)]
    seeds: Option<usize>,

    /// With --epochs: train/<class>/* and test/<class>/* [default: none]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Of the results [default: runs/comparison]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Measure all anew, also what --output has [default: off]
    #[arg(long)]
    again: bool,

    /// Of the environments [default: ~/.cache/lockstep/peers]
    #[arg(long, value_name = "DIR")]
    peers_dir: Option<PathBuf>,

    /// Another program than this one, built already [default: this program]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,

    /// Most that a measurement may take [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = options::count)]
    timeout: Option<usize>,

    /// What others may use during a run [default: 0.2]
    #[arg(long, value_name = "CORES")]
    quiet_cores: Option<String>,

    /// Runs of a disturbed measurement at most [default: 3]
    #[arg(long, value_name = "N", value_parser = options::count)]
    attempts: Option<usize>,

    /// Whether environments may be made.
    #[command(flatten)]
    installing: Installing,
}

/// A command line of this command alone.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    compare: CompareArgs,
}

impl CompareArgs {
    /// The flags of a command line, without the program's name.
    ///
    /// # Errors
    /// Unknown flags, values of another kind.
    pub(crate) fn parsed<'w>(words: impl IntoIterator<Item = &'w str>) -> Outcome<Self> {
        let line = CommandLine::try_parse_from(std::iter::once("compare").chain(words));
        let in_one_line = |error: clap::Error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Failure::Usage(first.strip_prefix("error: ").unwrap_or(first).to_owned())
        };
        line.map(|line| line.compare).map_err(in_one_line)
    }

    /// Refuses, before anything is started, what [`CompareArgs::run`] would refuse.
    ///
    /// # Errors
    /// Flags that do not go together; a place that this machine lacks; an output directory of another job, program or machine.
    pub(crate) fn check(&self) -> Outcome {
        let settings = Settings::read(self)?;
        if matches!(settings.launcher, Launcher::Hosts(_)) {
            hosts::require()?;
            Mpirun::needed(Mpirun::find().as_ref())?.expect_emulated_hosts()?;
        }
        let program = machine::program(&options::trainer(self.trainer.as_deref())?);
        directory::COMPARISON.check(&settings.output)?;
        Document::open(
            &settings.output,
            program,
            machine::machine(),
            settings.job(),
            false,
        )
        .map(|_| ())
    }

    /// Measures what the output directory has not, in turn with the other frameworks.
    ///
    /// # Errors
    /// Flags that do not go together; our own measurement failed. What another framework lacks is a gap in the table.
    pub fn run(&self) -> Outcome {
        environment::refuse_switches(std::env::vars_os())?;
        let settings = Settings::read(self)?;
        let mpirun = Mpirun::find();
        // Before anything is installed: what cannot be had is refused at once.
        let hosts = emulated_hosts(&settings, mpirun.as_ref())?;
        let trainer = options::trainer(self.trainer.as_deref())?;
        let output = &settings.output;
        fs::create_dir_all(output)
            .map_err(|error| Failure::Failed(format!("{}: {error}", output.display())))?;
        // Absolute, as peers and ranks may start elsewhere.
        let output = output
            .canonicalize()
            .map_err(|error| Failure::Failed(format!("{}: {error}", output.display())))?;
        let settings = Settings { output, ..settings };
        let _lock = directory::COMPARISON.lock(&settings.output)?;
        let program = machine::program(&trainer);
        let mut document = Document::open(
            &settings.output,
            program,
            machine::machine(),
            settings.job(),
            settings.is_again,
        )?;
        document.begin()?;
        if settings.is_again {
            // Another trainer may write other weights and batches.
            run_directory::fresh(&settings.output.join("jobs"))?;
        }
        let folder = settings.output.join("peers");
        let scripts = if settings.is_again {
            Scripts::write(&folder)
        } else {
            Scripts::of_comparison(&folder)
        }?;
        let installer = Installer {
            folder: &settings.peers_dir,
            scripts: &scripts,
            may_install: !self.installing.no_install,
        };
        let pythons: BTreeMap<_, _> = settings
            .frameworks
            .iter()
            .map(|&framework| (framework, installer.python(framework)))
            .collect();
        let bench = Bench {
            settings: &settings,
            mpirun,
            hosts,
            trainer,
            scripts: &scripts,
            pythons,
        };
        measure_speed(&bench, &mut document)?;
        measure_accuracy(&bench, &mut document)?;
        say!("\n{}", table::table(&document.rows).trim_end());
        if self.all_variants && !document.sweep.is_empty() {
            say!("\n{}", table::sweep(&document.sweep).trim_end());
        }
        if !document.accuracy.is_empty() {
            say!("\n{}", table::accuracy(&document.accuracy).trim_end());
        }
        say!(
            "\nwritten: {}",
            settings.output.join("comparison.json").display()
        );
        // A framework that cannot be had is a gap; that we cannot do the job ourselves is a failure.
        match document
            .rows
            .iter()
            .filter(|row| row.is_ours())
            .find_map(|row| row.gap.as_ref())
        {
            None => Ok(()),
            Some(reason) => Err(Failure::Failed(format!(
                "our own measurement failed: {reason}"
            ))),
        }
    }
}

/// One for each of several ranks, where they are started on some; they are gone with the value.
fn emulated_hosts(settings: &Settings, mpirun: Option<&Mpirun>) -> Outcome<Option<Hosts>> {
    let (Launcher::Hosts(rate), Some(&count)) = (settings.launcher, settings.ranks.iter().max())
    else {
        return Ok(None);
    };
    Mpirun::needed(mpirun)?.expect_emulated_hosts()?;
    let hosts = Hosts::up(count)?;
    hosts.set_rate(rate)?;
    Ok(Some(hosts))
}

/// All rounds that are not there yet, each in another order: what comes first or follows whom is chance.
fn measure_speed(bench: &Bench<'_>, document: &mut Document) -> Outcome {
    let settings = bench.settings;
    let mut contenders = Vec::new();
    for (model, dtype, ranks) in jobs(settings) {
        let (framework, setting, tried) = Default::default();
        let key = Key {
            framework,
            model,
            dtype,
            ranks,
            setting,
            tried,
        };
        let mut of_job = vec![(
            Contender::Ours,
            Key {
                framework: framework::OURS.to_owned(),
                ..key.clone()
            },
        )];
        for &framework in &settings.frameworks {
            let key = Key {
                framework: framework.title().to_owned(),
                ..key.clone()
            };
            let setting = sweep::best(bench, document, framework, &key)?;
            of_job.push((Contender::Peer(framework), Key { setting, ..key }));
        }
        contenders.push(of_job);
    }
    for round in 0..settings.rounds {
        let created = document.created.clone();
        let place = |key: &Key, framework: &str| {
            hash((
                &created, round, &key.model, &key.dtype, key.ranks, framework,
            ))
        };
        contenders.sort_by_cached_key(|of_job| place(&of_job[0].1, ""));
        for of_job in &mut contenders {
            of_job.sort_by_cached_key(|(_, key)| place(key, &key.framework));
            for (contender, key) in of_job {
                measure_block(
                    bench,
                    row_of(&mut document.rows, key, settings.threads),
                    *contender,
                    round,
                );
                document.save()?;
            }
        }
    }
    Ok(())
}

/// A number by which things stand in an order that is chance, but the same for the same comparison: its keys are fixed.
fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// One round of a row, unless it is there, or the row has a gap.
fn measure_block(bench: &Bench<'_>, row: &mut Row, contender: Contender, round: usize) {
    if row.blocks.len() > round || row.gap.is_some() {
        return;
    }
    let key = row.key.clone();
    let setting = if row.is_ours() {
        String::new()
    } else {
        format!(" ({})", key.setting.shown())
    };
    let which = if key.tried.is_empty() {
        format!("round {}", round + 1)
    } else {
        format!("{}?", key.tried)
    };
    let place = format!(
        "{which} {} {} r{} {}{setting}",
        key.model, key.dtype, key.ranks, key.framework
    );
    match bench
        .gap(contender, &key)
        .map_or_else(|| bench.block(contender, &key, round), Err)
    {
        Ok((launcher, about, block)) => {
            let disturbed = if block.is_disturbed {
                ", disturbed"
            } else {
                ""
            };
            say!(
                "{place}: {} images/s{disturbed}",
                records::rate(block.images_per_second)
            );
            row.launcher = launcher.to_string();
            row.about = about;
            row.blocks.push(block);
        }
        Err(reason) => {
            say!("{place}: gap: {reason}");
            row.gap = Some(reason);
        }
    }
}

/// Every combination of network, number format and ranks.
fn jobs(settings: &Settings) -> Vec<(String, String, usize)> {
    let mut jobs = Vec::new();
    for model in &settings.models {
        for dtype in &settings.dtypes {
            jobs.extend(
                settings
                    .ranks
                    .iter()
                    .map(|&ranks| (model.clone(), dtype.clone(), ranks)),
            );
        }
    }
    jobs
}

/// Training on images, where that is asked for.
fn measure_accuracy(bench: &Bench<'_>, document: &mut Document) -> Outcome {
    let settings = bench.settings;
    let Some(wanted) = &settings.accuracy else {
        return Ok(());
    };
    for model in &settings.models {
        for dtype in &settings.dtypes {
            let peers = settings
                .frameworks
                .iter()
                .map(|&framework| Contender::Peer(framework));
            let contenders: Vec<Contender> =
                std::iter::once(Contender::Ours).chain(peers).collect();
            for seed in 0..wanted.seeds as u64 {
                for &contender in &contenders {
                    let training = Training {
                        contender,
                        model,
                        dtype,
                        seed,
                        wanted,
                    };
                    if training.is_there(&document.accuracy) {
                        continue;
                    }
                    say!(
                        "accuracy {model} {dtype} seed {seed} {}: {} epochs",
                        contender.title(),
                        wanted.epochs
                    );
                    let course = training.record(bench, &competing(document, &training));
                    document.accuracy.push(course);
                    document.save()?;
                }
            }
        }
    }
    Ok(())
}

/// The setting with which a framework competes on one rank.
fn competing(document: &Document, training: &Training<'_>) -> Setting {
    let is_its = |key: &Key| {
        (
            key.framework.as_str(),
            key.model.as_str(),
            key.dtype.as_str(),
            key.ranks,
        ) == (
            training.contender.title(),
            training.model,
            training.dtype,
            1,
        )
    };
    document
        .rows
        .iter()
        .find(|row| is_its(&row.key))
        .map(|row| row.key.setting.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
