//! Check of the memory of a rank over a long run.
//!
//! In: a tiny training run of 2,000 steps. Out: a check. Source: proc(5), VmRSS in
//! /proc/PID/status.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::process::{self, Running};

use crate::suite::run::LIMIT_S;
use crate::suite::{Check, Checked, Ended, Suite};

pub(super) const CHECKS: [Check; 1] = [(
    "the memory of each rank stays flat over 2,000 steps",
    stays_flat,
)];

const RANKS: usize = 2;
const STEPS: usize = 2000;
const STEPS_PER_EPOCH: usize = 100;
/// The end may exceed the beginning by either of these.
const TOLERANCE_SHARE: f64 = 0.03;
const TOLERANCE_KIB: f64 = 4096.0;
const FEWEST_VALUES: usize = 25;

fn stays_flat(suite: &Suite) -> Checked {
    let samples = STEPS_PER_EPOCH * RANKS;
    let run = suite.run("memory").epochs(STEPS / STEPS_PER_EPOCH);
    let run = run.with(&format!(
        "--shapes-train {samples} --shapes-test 16 --global-batch-size 2 --eval-every-epochs 5"
    ));
    let command = run.command()?;
    let line = process::shown(&command);
    let log = run.log();
    let mut running = Running::start(command, &log)?;
    let mut courses = vec![Vec::new(); RANKS];
    let mut processes = [None; RANKS];
    let start = Instant::now();
    while !running.has_ended() && start.elapsed().as_secs() < LIMIT_S {
        // The first epoch allocates.
        if run.has_line() {
            for (rank, course) in courses.iter_mut().enumerate() {
                let find = || run.process_of_rank(rank);
                processes[rank] = processes[rank].or_else(find);
                course.extend(processes[rank].and_then(resident_kib));
            }
        }
        sleep(Duration::from_millis(100));
    }
    Ended::finish(line, running, Duration::from_secs(LIMIT_S))?.expect_success()?;
    for (rank, course) in courses.iter().enumerate() {
        is_flat(course).map_err(|text| format!("rank {rank}: {text}"))?;
    }
    Ok(())
}

/// Returns the resident memory of a process.
fn resident_kib(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("VmRSS:"))?;
    value.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Compares the last fifth with the second.
fn is_flat(course_kib: &[f64]) -> Result<(), String> {
    let num = course_kib.len();
    if num < FEWEST_VALUES {
        return Err(format!(
            "expected {FEWEST_VALUES} values or more, got {num}"
        ));
    }
    let early = median(&course_kib[num / 5..2 * (num / 5)]);
    let late = median(&course_kib[num - num / 5..]);
    let limit = (early * (1.0 + TOLERANCE_SHARE)).max(early + TOLERANCE_KIB);
    let tenths = course_kib.iter().step_by(num / 10);
    let course: Vec<String> = [early, late, limit]
        .iter()
        .chain(tenths)
        .map(|kib| format!("{:.1}", kib / 1024.0))
        .collect();
    let text = format!(
        "memory early, late, limit, then its course, MiB: {}",
        course.join(" ")
    );
    println!("        {text}");
    if late <= limit { Ok(()) } else { Err(text) }
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
    fn a_level_course_is_flat_and_a_rising_or_short_one_is_not() {
        let course = |value: fn(i32) -> i32| -> Vec<f64> {
            let values = (0..100).map(|index| f64::from(100_000 + value(index)));
            values.collect()
        };
        assert!(is_flat(&course(|index| index % 7)).is_ok());
        let error = is_flat(&course(|index| 100 * index)).unwrap_err();
        assert!(error.contains(" 97.7 "), "{error}");
        assert!(is_flat(&[1.0; 10]).is_err());
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_kib(std::process::id()).unwrap() > 100.0);
    }
}
