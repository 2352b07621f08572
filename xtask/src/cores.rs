//! How many processor cores this process may use, counted as mpirun counts them.
//!
//! Out: cores, not hardware threads: Open MPI gives a rank a core, and refuses more ranks than cores.
//! Invariant: at least 1; limits by affinity and by control groups are respected.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;

/// Cores open to this process.
pub(crate) fn available() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let cores = one_of_each().len();
    if cores == 0 { threads } else { threads.min(cores) }
}

/// A hardware thread of each core open to this process, in the kernel's numbers; empty where Linux does not tell.
pub(crate) fn one_of_each() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let is_first = |cpu: &usize| core_of(*cpu).is_some_and(|core| seen.insert(core));
    expanded(allowed).into_iter().filter(is_first).collect()
}

/// The cores in as many equal parts, as lists for `taskset -c`; none where there are fewer cores than parts.
pub(crate) fn per_part(num_parts: usize) -> Vec<String> {
    let cpus = one_of_each();
    let size = cpus.len() / num_parts.max(1);
    let list = |part: &[usize]| part.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    if size == 0 { Vec::new() } else { cpus.chunks(size).take(num_parts).map(list).collect() }
}

/// The socket and the core that a hardware thread belongs to.
fn core_of(cpu: usize) -> Option<(String, String)> {
    let read = |name| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).ok();
    Some((read("physical_package_id")?, read("core_id")?))
}

/// A list in the kernel's notation, such as `0-2,5`.
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
