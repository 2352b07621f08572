//! Checks of the memory of a rank over a long run.
//!
//! In: the program, a tiny training run of 2,000 steps. Out: a check. Source: proc(5), VmRSS in /proc/PID/status.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, Run, arguments, instead};
use crate::suite::{Check, Ended, check};
use cluster::process::{self, Running};

pub(super) const CHECKS: [Check<Suite>; 1] = [check(
    "the memory of each rank stays flat over 2,000 steps",
    stays_flat,
)];

const RANKS: usize = 2;
const STEPS: usize = 2000;
/// Samples of the split, all of them in this many steps of an epoch.
const STEPS_PER_EPOCH: usize = 100;
/// How much the end may lie above the beginning: either of these.
const TOLERANCE_SHARE: f64 = 0.03;
const TOLERANCE_KIB: f64 = 4096.0;
/// Fewer values than this say nothing about a course.
const FEWEST_VALUES: usize = 25;

fn stays_flat(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "memory");
    let samples = (STEPS_PER_EPOCH * RANKS).to_string();
    let few = [
        "--shapes-train",
        &samples,
        "--shapes-test",
        "16",
        "--global-batch-size",
        "2",
        "--eval-every-epochs",
        "5",
    ];
    let words = instead(arguments(&run.folder, STEPS / STEPS_PER_EPOCH), &few);
    let command = suite.on_ranks(RANKS, suite.trainer(), &words)?;
    let line = process::shown(&command);
    let log = suite.folder().join("memory.log");
    let mut running = Running::start(command, &log)?;
    let mut courses = vec![Vec::new(); RANKS];
    let mut processes = [None; RANKS];
    let start = Instant::now();
    while !running.has_ended() && start.elapsed().as_secs() < LIMIT_S {
        // The first steps are when everything is made.
        if run.has_line() {
            for (rank, course) in courses.iter_mut().enumerate() {
                processes[rank] =
                    processes[rank].or_else(|| suite.process_of_rank(&run.folder, rank));
                course.extend(processes[rank].and_then(resident_kib));
            }
        }
        sleep(Duration::from_millis(100));
    }
    let ended = Ended {
        line,
        finished: running.finish(Duration::from_secs(LIMIT_S))?,
    };
    ended.expect_success()?;
    courses.iter().enumerate().try_for_each(|(rank, course)| {
        is_flat(course).map_err(|text| format!("rank {rank}: {text}"))
    })
}

/// The memory of a process that is in the machine's, KiB.
fn resident_kib(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Compares the last fifth with the second.
fn is_flat(course_kib: &[f64]) -> Result<(), String> {
    if course_kib.len() < FEWEST_VALUES {
        return Err(format!(
            "expected at least {FEWEST_VALUES} values of the memory, got {}",
            course_kib.len()
        ));
    }
    let fifth = course_kib.len() / 5;
    let early = median(&course_kib[fifth..2 * fifth]);
    let late = median(&course_kib[course_kib.len() - fifth..]);
    let limit = (early * (1.0 + TOLERANCE_SHARE)).max(early + TOLERANCE_KIB);
    if late <= limit {
        println!(
            "        memory {:.1} MiB early, {:.1} MiB late",
            early / 1024.0,
            late / 1024.0
        );
        return Ok(());
    }
    let tenth = (course_kib.len() / 10).max(1);
    let course: Vec<String> = course_kib
        .iter()
        .step_by(tenth)
        .map(|kib| format!("{:.1}", kib / 1024.0))
        .collect();
    Err(format!(
        "expected at most {:.1} MiB in the last fifth ({:.1} in the second), got {:.1}; the course in MiB: {}",
        limit / 1024.0,
        early / 1024.0,
        late / 1024.0,
        course.join(" ")
    ))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_course_is_flat_and_a_rising_one_is_not() {
        let level: Vec<f64> = (0..100)
            .map(|index| 100_000.0 + f64::from(index % 7))
            .collect();
        assert!(is_flat(&level).is_ok());
        let rising: Vec<f64> = (0..100)
            .map(|index| 100_000.0 + 100.0 * f64::from(index))
            .collect();
        assert!(
            is_flat(&rising)
                .unwrap_err()
                .contains("the course in MiB: 97.7")
        );
    }

    #[test]
    fn too_few_values_are_refused() {
        assert!(is_flat(&[1.0; 10]).is_err());
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_kib(std::process::id()).unwrap() > 100.0);
    }
}
