//! `trainer compare`: the same job in other frameworks, in turn with ours.
//!
//! In: frameworks, networks, ranks. Out: `comparison.json` in the output directory, a table on standard output.
//! Invariant: all have the same network, initial weights, batches, optimizer and steps, written once by our trainer; a framework's k-th
//! block lies beside our k-th; what cannot be had is a named gap. The scripts of the other
//! frameworks, `peers/` of the repository, travel inside this program.
//! Source: Hoefler & Belli 2015, Scientific benchmarking of parallel computing systems, rules 1, 2 and 4.

mod accuracy;
mod block;
mod document;
mod framework;
mod install;
mod measure;
mod row;
mod run;
mod scripts;
mod settings;
mod start;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::Args;

use self::document::Document;
use self::install::Installer;
use self::measure::{Bench, Contender};
use self::row::Key;
use self::scripts::Scripts;
use self::settings::Settings;
use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::mpirun::Mpirun;
use crate::options::{self, Installing};
use crate::run_directory;

const DETAILS: &str = "\
Example: trainer compare --with pytorch,jax --models resnet20,resnet44 --ranks 1,2
The other frameworks live in virtual environments below --peers-dir, which are made where they are missing (PyTorch takes
5.5 GB, TensorFlow 1.5 GB, JAX 0.6 GB, MXNet 0.3 GB; Horovod is built, with mpicxx). A throughput counts only if the losses
after 2 and 5 steps are ours. Several ranks of ours and of Horovod are always started by mpirun or srun.
The same --output goes on with a half-done comparison; a framework that is added later is measured then, not beside ours.";

/// Flags of `trainer compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct CompareArgs {
    /// Other frameworks: pytorch,horovod,tensorflow,mxnet,jax or some [default: all]
    #[arg(long, value_name = "LIST")]
    with: Option<String>,

    /// Networks [default: resnet20]
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

    /// Measured steps of a block [default: 8]
    #[arg(long, value_name = "N", value_parser = options::count)]
    steps: Option<usize>,

    /// Steps before them [default: 2]
    #[arg(long, value_name = "N", value_parser = options::count)]
    warmup_steps: Option<usize>,

    /// Rounds over all frameworks [default: 3]
    #[arg(long, value_name = "N", value_parser = options::count)]
    blocks: Option<usize>,

    /// Plain, mpirun or srun [default: plain]
    #[arg(long, value_name = "NAME")]
    launcher: Option<String>,

    /// Train on images too, for accuracy [default: none]
    #[arg(long, value_name = "N", value_parser = options::count)]
    epochs: Option<usize>,

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

impl CompareArgs {
    /// Measures what the output directory has not, in turn with the other frameworks.
    ///
    /// # Errors
    /// Flags that do not go together; our own measurement failed. What another framework lacks is a gap in the table.
    pub fn run(&self) -> Outcome {
        let settings = Settings::read(self)?;
        let trainer = options::trainer(self.trainer.as_deref())?;
        let output = &settings.output;
        fs::create_dir_all(output).map_err(|error| Failure::Failed(format!("{}: {error}", output.display())))?;
        // Absolute, as peers and ranks may start elsewhere.
        let output =
            output.canonicalize().map_err(|error| Failure::Failed(format!("{}: {error}", output.display())))?;
        let settings = Settings { output, ..settings };
        if settings.is_again {
            // Another trainer may write other weights and batches.
            run_directory::fresh(&settings.output.join("jobs"))?;
        }
        let folder = settings.output.join("peers");
        let scripts = if settings.is_again { Scripts::write(&folder) } else { Scripts::of_comparison(&folder) }?;
        let installer =
            Installer { folder: &settings.peers_dir, scripts: &scripts, may_install: !self.installing.no_install };
        let pythons: BTreeMap<_, _> =
            settings.frameworks.iter().map(|&framework| (framework, installer.python(framework))).collect();
        let commit = machine::commit(&trainer);
        let bench = Bench { settings: &settings, mpirun: Mpirun::find(), trainer, scripts: &scripts, pythons };
        let mut document =
            Document::open(&settings.output, commit, machine::machine(), settings.job(), settings.is_again)?;
        measure_speed(&bench, &mut document)?;
        measure_accuracy(&bench, &mut document)?;
        print!("\n{}", table::table(&document.rows));
        if !document.accuracy.is_empty() {
            print!("\n{}", table::accuracy(&document.accuracy));
        }
        println!("\nwritten: {}", settings.output.join("comparison.json").display());
        // A framework that cannot be had is a gap; that we cannot do the job ourselves is a failure.
        match document.rows.iter().filter(|row| row.is_ours()).find_map(|row| row.gap.as_ref()) {
            None => Ok(()),
            Some(reason) => Err(Failure::Failed(format!("our own measurement failed: {reason}"))),
        }
    }
}

/// All blocks that are not there yet, ours and theirs in turn.
fn measure_speed(bench: &Bench<'_>, document: &mut Document) -> Outcome {
    let settings = bench.settings;
    for index in 0..settings.blocks {
        for (model, dtype, ranks) in jobs(settings) {
            let peers = settings.frameworks.iter().map(|&framework| Contender::Peer(framework));
            for contender in std::iter::once(Contender::Ours).chain(peers) {
                let key =
                    Key { framework: contender.title().to_owned(), model: model.clone(), dtype: dtype.clone(), ranks };
                measure_block(bench, document, contender, &key, index)?;
            }
        }
    }
    Ok(())
}

/// One block of a row, unless it is there, or the row has none.
fn measure_block(bench: &Bench<'_>, document: &mut Document, contender: Contender, key: &Key, index: usize) -> Outcome {
    let row = document.row(key, bench.settings.threads);
    if row.blocks.len() > index || row.gap.is_some() {
        return Ok(());
    }
    let place = format!("block {} {} {} r{} {}", index + 1, key.model, key.dtype, key.ranks, key.framework);
    let refusal = match contender {
        Contender::Peer(framework) => framework.refusal(&key.dtype, key.ranks).map(str::to_owned),
        Contender::Ours => None,
    };
    match refusal.map_or_else(|| bench.block(contender, key, index), Err) {
        Ok((launcher, about, block)) => {
            let disturbed = if block.is_disturbed { ", disturbed" } else { "" };
            println!("{place}: {:.0} images/s{disturbed}", block.images_per_second);
            row.launcher = launcher.word().to_owned();
            row.about = about;
            row.blocks.push(block);
        }
        Err(reason) => {
            println!("{place}: gap: {reason}");
            row.gap = Some(reason);
        }
    }
    document.save()
}

/// Every combination of network, number format and ranks.
fn jobs(settings: &Settings) -> Vec<(String, String, usize)> {
    let mut jobs = Vec::new();
    for model in &settings.models {
        for dtype in &settings.dtypes {
            jobs.extend(settings.ranks.iter().map(|&ranks| (model.clone(), dtype.clone(), ranks)));
        }
    }
    jobs
}

/// Training on images, where that is asked for.
fn measure_accuracy(bench: &Bench<'_>, document: &mut Document) -> Outcome {
    let settings = bench.settings;
    let Some(wanted) = &settings.accuracy else { return Ok(()) };
    for model in &settings.models {
        for dtype in &settings.dtypes {
            let peers = settings.frameworks.iter().map(|&framework| Contender::Peer(framework));
            for contender in std::iter::once(Contender::Ours).chain(peers) {
                if accuracy::is_there(&document.accuracy, contender, model, dtype, wanted) {
                    continue;
                }
                println!("accuracy {model} {dtype} {}: {} epochs", contender.title(), wanted.epochs);
                document.accuracy.push(accuracy::record(bench, contender, model, dtype, wanted));
                document.save()?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_a_named_gap_of_the_table() {
        let folder = std::env::temp_dir().join(format!("lockstep-jobs-{}-gaps", std::process::id()));
        let line = format!(
            "--with jax,horovod --ranks 1 --no-install --peers-dir {0}/peers --output {0}/out --trainer /bin/true --quiet-cores 1e9 --blocks 1",
            folder.display()
        );
        let failure = settings::tests::args(&line).unwrap().run().unwrap_err();
        let found: serde_json::Value = block::read(&folder.join("out/comparison.json")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        // This trainer measures nothing, which is no gap but a failure.
        assert!(failure.to_string().contains("our own measurement failed"), "{failure}");
        let gap = |framework: &str| {
            let rows = found["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["framework"] == framework).unwrap();
            assert_eq!((&row["counts"], row["images_per_second"].as_array().unwrap().len()), (&false.into(), 0));
            row["gap"].as_str().unwrap().to_owned()
        };
        assert!(gap("JAX").contains("not installed"), "{}", gap("JAX"));
        assert!(gap("Horovod").contains("it is PyTorch"), "{}", gap("Horovod"));
        assert!(gap(framework::OURS).contains("JSON"), "{}", gap(framework::OURS));
    }
}
