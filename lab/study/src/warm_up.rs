//! One short run before the first one, so that no measured run finds cold caches.
//!
//! In: the first cell. Out: `warm-up.log` in the study's directory.
//! Invariant: not recorded; a failure is printed, and the attempts of the cell decide.

use std::path::Path;
use std::time::Duration;

use super::cell::Cell;
use super::file::{Kind, StudyFile};
use super::{flags, local, predict};
use cluster::failure::Outcome;
use cluster::guard::Guarded;
use cluster::output::say;

/// Loads program and network into the caches.
pub(crate) fn run(cell: &Cell, file: &StudyFile, trainer: &Path, study: &Path) -> Outcome {
    let words = match cell.kind {
        Kind::Netbench => vec!["--version".to_owned()],
        _ => words(cell, &flags::known(trainer, Kind::Bench)?),
    };
    let command = local::alone(trainer, &words, 0, cell.threads);
    let limit = Duration::from_secs(file.limit_s as u64);
    let code = Guarded::start(&command, &study.join("warm-up.log"))?.finish(limit)?;
    if code != Some(0) {
        say!(
            "note: the warm-up run failed: see {}/warm-up.log",
            study.display()
        );
    }
    Ok(())
}

/// Returns one step of a cell on one rank, with the arguments that `bench` supports.
fn words(cell: &Cell, known: &[String]) -> Vec<String> {
    let mut words = vec![Kind::Bench.name().to_owned()];
    let mut is_kept = false;
    for word in predict::of_one_rank(&cell.arguments).into_iter().skip(1) {
        if let Some(flag) = word
            .starts_with("--")
            .then(|| word.split('=').next().unwrap_or_default())
        {
            is_kept = !["--steps", "--warmup-steps"].contains(&flag)
                && known.iter().any(|known| known == flag);
        }
        if is_kept {
            words.push(word);
        }
    }
    words.extend(["--steps", "1", "--warmup-steps", "0"].map(str::to_owned));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;

    #[test]
    fn the_warm_up_is_a_step_of_the_cell_with_all_that_bench_knows_of_it() {
        let words_of = |rest: &str| {
            let (_, cells) = study(&format!("[[matrix]]\nranks = 2\n{rest}")).unwrap();
            let known = [
                "--model",
                "--depth",
                "--dtype",
                "--threads",
                "--batch-size-per-rank",
                "--steps",
                "--warmup-steps",
            ];
            words(&cells[0], &known.map(str::to_owned)).join(" ")
        };
        let own = "model = \"resnet\"\ndepth = [8, 14]\nsteps = 20\nwarmup_steps = 3\nbatch_size_per_rank = 4\n";
        let of_one = "--depth 8 --dtype f32 --model resnet --threads 1 --batch-size-per-rank 4 --steps 1 --warmup-steps 0";
        assert_eq!(words_of(own), format!("bench {of_one}"));
        let training = "kind = \"train\"\nmodel = \"resnet\"\ndepth = 8\nepochs = 2\ndownload = true\nbatch_size_per_rank = 4\n";
        assert_eq!(words_of(training), format!("bench {of_one}"));
    }
}
