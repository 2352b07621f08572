//! The CPU cores that this process may use, and programs bound to a part of them.
//!
//! In: a program, its place. Out: a command.
//! Invariant: cores count as mpirun counts them: Open MPI gives a rank a core, not a hardware
//! thread, and refuses more ranks than cores. At least 1; limits by affinity and control groups are
//! respected.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;

use crate::probe;

/// Returns the number of cores that this process may use.
pub fn available() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    match one_of_each().len() {
        0 => threads,
        cores => threads.min(cores),
    }
}

/// Returns one hardware thread of each core.
fn one_of_each() -> Vec<usize> {
    by_core()
        .iter()
        .filter_map(|cpus| cpus.first().copied())
        .collect()
}

/// Returns the hardware threads of each core, in the kernel's numbers; empty where Linux has no
/// topology.
fn by_core() -> Vec<Vec<usize>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or_default();
    let mut cores: Vec<((String, String), Vec<usize>)> = Vec::new();
    for cpu in expanded(allowed) {
        let Some(core) = core_of(cpu) else { continue };
        match cores.iter_mut().find(|(known, _)| *known == core) {
            Some((_, cpus)) => cpus.push(cpu),
            None => cores.push((core, vec![cpu])),
        }
    }
    cores.into_iter().map(|(_, cpus)| cpus).collect()
}

/// Prepares a program bound to as many cores as it has threads, with all hardware threads of each,
/// as mpirun binds a rank. The program at place 0 gets the first cores. Without such cores or
/// without taskset the program is not bound.
pub fn pinned(program: &Path, place: usize, threads: usize) -> Command {
    match probe::program("taskset").zip(cpus_of(&by_core(), place, threads)) {
        Some((taskset, cpus)) => {
            let mut command = Command::new(taskset);
            command.args(["-c", &cpus]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// Returns the list of CPUs at a place for `taskset -c`, if there are enough cores.
fn cpus_of(cores: &[Vec<usize>], place: usize, threads: usize) -> Option<String> {
    let own = cores.get(place * threads..(place + 1) * threads)?;
    let cpus: Vec<String> = own.iter().flatten().map(usize::to_string).collect();
    Some(cpus.join(","))
}

/// Splits the cores into equal parts, as lists for `taskset -c`; empty if there are fewer cores
/// than parts.
pub(crate) fn per_part(num_parts: usize) -> Vec<String> {
    let cores: Vec<Vec<usize>> = one_of_each().chunks(1).map(<[_]>::to_vec).collect();
    match cores.len() / num_parts.max(1) {
        0 => Vec::new(),
        size => (0..num_parts)
            .filter_map(|part| cpus_of(&cores, part, size))
            .collect(),
    }
}

/// Returns the socket and core of a hardware thread.
fn core_of(cpu: usize) -> Option<(String, String)> {
    let read =
        |name| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).ok();
    Some((read("physical_package_id")?, read("core_id")?))
}

/// Expands a list in the kernel's notation, such as `0-2,5`.
fn expanded(list: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_expanded() {
        assert_eq!(expanded("\t0-2,5,8-8\n"), [0, 1, 2, 5, 8]);
        assert!(expanded("").is_empty());
    }

    #[test]
    fn a_place_has_all_hardware_threads_of_its_own_cores() {
        let cores = [vec![0, 4], vec![1, 5], vec![2, 6]];
        assert_eq!(cpus_of(&cores, 1, 1).as_deref(), Some("1,5"));
        assert_eq!(cpus_of(&cores, 0, 2).as_deref(), Some("0,4,1,5"));
        assert_eq!(cpus_of(&cores, 1, 2), None);
    }

    #[test]
    fn parts_of_the_cores_are_as_many_as_asked_for_or_none() {
        let count = one_of_each().len();
        for num_parts in 1..=count {
            assert_eq!(per_part(num_parts).len(), num_parts);
        }
        assert!(per_part(count + 1).is_empty());
    }

    #[test]
    fn there_is_at_least_one_core_and_never_more_than_hardware_threads() {
        let threads = std::thread::available_parallelism().unwrap().get();
        assert!((1..=threads).contains(&available()));
    }
}
