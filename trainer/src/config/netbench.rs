//! The configuration of `netbench`.
//!
//! In: its flags. Out: plain values. Invariant: sizes ascend without duplicates.

use super::error::{ConfigError, invalid, no_effect};
use super::options::in_range;
use super::sync::timeout;
use crate::config::choices::ReductionChoice;
use crate::config::cli::NetbenchArgs;
use clap::ValueEnum;
use std::time::Duration;

/// Largest message, bytes.
const MOST_BYTES: usize = 1 << 30;

/// Largest default size, bytes.
const DEFAULT_MOST_BYTES: usize = 64 << 20;

/// Longest time of a point, seconds.
const MOST_SECONDS: f64 = 3600.0;

/// The measurement of `trainer netbench`.
#[derive(Debug, Clone, PartialEq)]
pub struct NetbenchConfig {
    /// Messages and collectives.
    pub plan: netbench::NetbenchPlan,
    /// Longest wait for another rank.
    pub timeout: Duration,
}

impl NetbenchConfig {
    /// Resolves the flags.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the option and the remedy.
    pub fn resolve(args: &NetbenchArgs, world_size: usize) -> Result<Self, ConfigError> {
        let expected = format!("above 0 and at most {MOST_SECONDS}");
        let seconds = args.seconds_per_point.unwrap_or(1.0);
        let seconds = in_range("seconds-per-point", seconds, &expected, |seconds| {
            seconds > 0.0 && seconds <= MOST_SECONDS
        })?;
        let timeout = timeout(args.timeout)?;
        if timeout.as_secs_f64() <= 2.0 * seconds {
            let expected = format!(
                "more than twice --seconds-per-point, {seconds} s, as other ranks wait for a pair"
            );
            return Err(invalid("--timeout", expected, format!("{timeout:?}")));
        }
        if args.ranks.is_some() && world_size == 1 {
            return Err(no_effect(
                "--ranks",
                "in a world of one rank",
                "start it with mpirun or srun, or leave it out",
            ));
        }
        let all = if world_size > 1 {
            vec![world_size]
        } else {
            Vec::new()
        };
        let mut ranks = args.ranks.clone().unwrap_or(all);
        ranks.sort_unstable();
        ranks.dedup();
        if let Some(wrong) = ranks
            .iter()
            .find(|ranks| !(2..=world_size).contains(*ranks))
        {
            let expected = format!("numbers from 2 to {world_size}, the world size");
            return Err(invalid("--ranks", expected, wrong));
        }
        if args.max_bytes.is_some() && args.sizes.is_some() {
            return Err(no_effect(
                "--max-bytes",
                "with --sizes, which lists all sizes",
                "leave one of them out",
            ));
        }
        if args.pairs == Some(0) {
            return Err(invalid("--pairs", "at least 1", 0));
        }
        let most = args.max_bytes.unwrap_or(DEFAULT_MOST_BYTES);
        let powers = (0..).map(|power| 1 << (2 * power));
        let mut sizes = match &args.sizes {
            Some(sizes) => sizes.clone(),
            None => powers.take_while(|&bytes| bytes <= most).collect(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        let mut reductions = Vec::new();
        let given = args.reductions.as_deref();
        for choice in given.unwrap_or(ReductionChoice::value_variants()) {
            match choice.kind().map(|kind| (kind, choice.to_string())) {
                Some(one) if !reductions.contains(&one) => reductions.push(one),
                None if given.is_some() => {
                    let expected = "algorithms over the ranks' network, as GPUs are not measured";
                    return Err(invalid("--reductions", expected, choice));
                }
                _ => {}
            }
        }
        Ok(Self {
            plan: netbench::NetbenchPlan {
                sizes,
                time_per_point: Duration::from_secs_f64(seconds),
                most_pairs: args.pairs.unwrap_or(28),
                ranks,
                reductions,
            },
            timeout,
        })
    }

    /// Returns the settings that must be equal on all ranks, as (option, value).
    pub fn shared_settings(&self) -> Vec<(String, String)> {
        let seconds = self.plan.time_per_point.as_secs_f64();
        let settings = [
            ("--sizes", format!("{:?}", self.plan.sizes)),
            ("--seconds-per-point", seconds.to_string()),
            ("--pairs", self.plan.most_pairs.to_string()),
            ("--ranks", format!("{:?}", self.plan.ranks)),
            ("--reductions", format!("{:?}", self.plan.reductions)),
            ("--timeout", self.timeout.as_secs().to_string()),
        ];
        settings
            .map(|(option, value)| (option.to_owned(), value))
            .to_vec()
    }
}

/// Reads `4096`, `4096B`, `4KiB`, `1MiB` or `1GiB`.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
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
    use crate::config::cli::typed;

    fn resolve(flags: &str, world_size: usize) -> Result<NetbenchConfig, String> {
        NetbenchConfig::resolve(&typed(flags), world_size).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_powers_of_four_up_to_64_mib_unless_bounded_or_given() {
        let sizes = |flags| resolve(flags, 2).unwrap().plan.sizes;
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
        let ranks = |flags, world_size| resolve(flags, world_size).unwrap().plan.ranks;
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
            ("--timeout 60", "--timeout"),
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
        let all = resolve("", 2).unwrap().plan.reductions;
        assert!(
            all.iter()
                .all(|(_, name)| *name != ReductionChoice::Nccl.to_string())
        );
    }
}
