//! The flags of `trainer netbench`.
//!
//! In: flags. Out: a [`NetbenchPlan`]. Invariant: sizes ascend without duplicates.

use clap::{Args, ValueEnum};
use distributed::gradients::ReductionChoice;
use std::path::PathBuf;
use std::time::Duration;

use crate::NetbenchPlan;

/// Largest message, bytes.
const MOST_BYTES: usize = 1 << 30;

/// Largest default size, bytes.
const DEFAULT_MOST_BYTES: usize = 64 << 20;

/// Longest time of a point, seconds.
const MOST_SECONDS: f64 = 3600.0;

/// Flags of `trainer netbench`.
#[derive(Debug, Clone, Default, Args)]
pub struct NetbenchArgs {
    /// Sizes, comma-separated, bytes, KiB or MiB [default: powers of 4 from 1 to 64MiB]
    #[arg(long, value_delimiter = ',', value_parser = bytes)]
    pub sizes: Option<Vec<usize>>,

    /// Largest of the default sizes, bytes, KiB or MiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub max_bytes: Option<usize>,

    /// Longest time of a point, seconds; it ends earlier at 5 % [default: 1]
    #[arg(long, value_name = "SECONDS")]
    pub seconds_per_point: Option<f64>,

    /// Largest number of pairs of nodes (on one node, of ranks) [default: 28]
    #[arg(long)]
    pub pairs: Option<usize>,

    /// Numbers of ranks for the collectives, comma-separated [default: all ranks]
    #[arg(long, value_delimiter = ',')]
    pub ranks: Option<Vec<usize>>,

    /// Algorithms of all-reduce, comma-separated [default: all but nccl]
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub reductions: Option<Vec<ReductionChoice>>,

    /// File for points, fit and environment, JSON [default: none]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Longest wait for ranks without progress before all stop, seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Print one JSON object as the last line [default: off]
    #[arg(long)]
    pub json: bool,
}

impl NetbenchArgs {
    /// Returns the measurement on `world_size` ranks that wait up to `timeout` for each other.
    ///
    /// # Errors
    /// A text that names the option and the remedy.
    pub fn plan(&self, world_size: usize, timeout: Duration) -> Result<NetbenchPlan, String> {
        let seconds = self.seconds_per_point.unwrap_or(1.0);
        if !(seconds > 0.0 && seconds <= MOST_SECONDS) {
            return Err(format!(
                "--seconds-per-point: expected above 0 and at most {MOST_SECONDS}, got {seconds}"
            ));
        }
        if timeout.as_secs_f64() <= 2.0 * seconds {
            return Err(format!(
                "--timeout: expected more than twice --seconds-per-point, {seconds} s, as other ranks wait for a pair, got {timeout:?}"
            ));
        }
        if self.ranks.is_some() && world_size == 1 {
            return Err("--ranks has no effect in a world of one rank: start it with mpirun or srun, or leave it out".to_owned());
        }
        let all = if world_size > 1 {
            vec![world_size]
        } else {
            Vec::new()
        };
        let ranks = ascending(self.ranks.clone().unwrap_or(all));
        if let Some(wrong) = ranks
            .iter()
            .find(|ranks| !(2..=world_size).contains(*ranks))
        {
            return Err(format!(
                "--ranks: expected numbers from 2 to {world_size}, the world size, got {wrong}"
            ));
        }
        if self.max_bytes.is_some() && self.sizes.is_some() {
            return Err("--max-bytes has no effect with --sizes, which lists all sizes: leave one of them out".to_owned());
        }
        if self.pairs == Some(0) {
            return Err("--pairs: expected at least 1, got 0".to_owned());
        }
        let most = self.max_bytes.unwrap_or(DEFAULT_MOST_BYTES);
        let powers = (0..).map(|power| 1 << (2 * power));
        let sizes = match &self.sizes {
            Some(sizes) => sizes.clone(),
            None => powers.take_while(|&bytes| bytes <= most).collect(),
        };
        let mut reductions = Vec::new();
        let given = self.reductions.as_deref();
        for choice in given.unwrap_or(ReductionChoice::value_variants()) {
            match choice.kind().map(|kind| (kind, choice.to_string())) {
                Some(one) if !reductions.contains(&one) => reductions.push(one),
                None if given.is_some() => {
                    return Err(format!(
                        "--reductions: expected algorithms over the ranks' network, as GPUs are not measured, got {choice}"
                    ));
                }
                _ => {}
            }
        }
        Ok(NetbenchPlan {
            sizes: ascending(sizes),
            time_per_point: Duration::from_secs_f64(seconds),
            most_pairs: self.pairs.unwrap_or(28),
            ranks,
            reductions,
        })
    }
}

impl NetbenchPlan {
    /// Returns the settings that must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let seconds = self.time_per_point.as_secs_f64();
        let settings = [
            ("--sizes", format!("{:?}", self.sizes)),
            ("--seconds-per-point", seconds.to_string()),
            ("--pairs", self.most_pairs.to_string()),
            ("--ranks", format!("{:?}", self.ranks)),
            ("--reductions", format!("{:?}", self.reductions)),
        ];
        settings
            .map(|(option, value)| (option.to_owned(), value))
            .to_vec()
    }
}

fn ascending(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Reads `4096`, `4096B`, `4KiB`, `1MiB` or `1GiB`.
fn bytes(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, usize); 4] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("B", 1),
    ];
    let (digits, unit) = UNITS
        .iter()
        .find_map(|&(unit, bytes)| Some((text.trim().strip_suffix(unit)?, bytes)))
        .unwrap_or((text, 1));
    let number = digits.trim().parse::<usize>().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| (1..=MOST_BYTES).contains(bytes))
        .ok_or_else(|| "expected 1 to 1GiB, such as 4096, 64KiB or 16MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn resolve(flags: &str, world_size: usize) -> Result<NetbenchPlan, String> {
        let command = NetbenchArgs::augment_args(Command::new("netbench").no_binary_name(true));
        let matches = command.get_matches_from(flags.split_whitespace());
        let args = NetbenchArgs::from_arg_matches(&matches).unwrap();
        let timeout = Duration::from_secs(args.timeout.unwrap_or(120));
        args.plan(world_size, timeout)
    }

    #[test]
    fn sizes_are_powers_of_four_up_to_64_mib_unless_bounded_or_given() {
        let sizes = |flags| resolve(flags, 2).unwrap().sizes;
        let all = sizes("");
        assert_eq!((all[0], all[1], all.len(), all[13]), (1, 4, 14, 64 << 20));
        assert_eq!(sizes("--max-bytes 20KiB").last(), Some(&16_384));
        assert_eq!(sizes("--sizes 1MiB,100,4KiB,100B"), [100, 4096, 1 << 20]);
        for text in [
            "0",
            "-1",
            "many",
            "1.5MiB",
            "2GiB",
            "99999999999999999999MiB",
            "1MB",
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains("expected 1 to 1GiB"), "{error}");
        }
    }

    #[test]
    fn ranks_are_all_or_the_given_ones_within_the_world() {
        let ranks = |flags, world_size| resolve(flags, world_size).unwrap().ranks;
        assert_eq!(ranks("", 4), [4]);
        assert!(ranks("", 1).is_empty());
        assert_eq!(ranks("--ranks 4,2,4", 4), [2, 4]);
    }

    #[test]
    fn shared_settings_name_the_flag_that_differs() {
        let settings = |flags| resolve(flags, 4).unwrap().shared_settings();
        for (flags, option) in [
            ("--sizes 4", "--sizes"),
            ("--seconds-per-point 2", "--seconds-per-point"),
            ("--pairs 3", "--pairs"),
            ("--ranks 2", "--ranks"),
            ("--reductions ring", "--reductions"),
        ] {
            let (all, changed) = (settings(""), settings(flags));
            let mut pairs = all.iter().zip(&changed);
            let (_, (differing, _)) = pairs.find(|(all, changed)| all != changed).unwrap();
            assert_eq!(differing, option);
            assert!(pairs.all(|(all, changed)| all == changed), "{flags}");
        }
    }

    #[test]
    fn options_that_cannot_be_are_refused() {
        for (flags, world_size, expected) in [
            ("--max-bytes 1 --sizes 1", 2, "--max-bytes has no effect"),
            (
                "--ranks 1",
                4,
                "expected numbers from 2 to 4, the world size, got 1",
            ),
            ("--ranks 8", 4, "got 8"),
            (
                "--ranks 2",
                1,
                "--ranks has no effect in a world of one rank",
            ),
            (
                "--reductions nccl",
                2,
                "--reductions: expected algorithms over the ranks' network",
            ),
            ("--seconds-per-point 0", 2, "--seconds-per-point"),
            ("--seconds-per-point=-1", 2, "--seconds-per-point"),
            ("--seconds-per-point nan", 2, "--seconds-per-point"),
            ("--seconds-per-point inf", 2, "--seconds-per-point"),
            ("--seconds-per-point 4000", 2, "--seconds-per-point"),
            (
                "--seconds-per-point 10 --timeout 20",
                2,
                "--timeout: expected more than twice",
            ),
            ("--pairs 0", 2, "--pairs: expected at least 1, got 0"),
        ] {
            let error = resolve(flags, world_size).unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
        let all = resolve("", 2).unwrap().reductions;
        assert!(
            all.iter()
                .all(|(_, name)| *name != ReductionChoice::Nccl.to_string())
        );
    }
}
