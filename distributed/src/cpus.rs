//! The CPUs that a process may use, and its share of the CPUs that ranks of a node have in common.
//!
//! In: `/proc` and `/sys` of this process, and the limits of the node's other ranks. Out:
//! [`CpuLimits`] and a number of CPUs.
//! Invariant: without a report of Linux there is no limit. A share is at least one CPU.
//! Source: cpuset(7); Linux, admin-guide/cgroup-v2.rst (`cpu.max`), scheduler/sched-bwc.rst
//! (`cpu.cfs_quota_us`).

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// Root of the control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The CPUs that a process may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuLimits {
    /// CPUs in the process's affinity mask that are online. Never empty.
    pub allowed: BTreeSet<usize>,
    /// CPU quotas of the process's control group and of the parent groups.
    pub quotas: Vec<CpuQuota>,
}

/// The CPU time that a control group may use.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuQuota {
    /// Directory of the group. Processes with the same directory share the quota.
    pub group: String,
    /// CPUs: CPU time per wall-clock time.
    pub cpus: f64,
}

impl CpuLimits {
    /// Reads the limits of this process.
    pub fn of_this_process() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap_or_default();
        let mut allowed = online(
            &numbers(mask),
            &numbers(&text("/sys/devices/system/cpu/online")),
        );
        if allowed.is_empty() {
            allowed = (0..std::thread::available_parallelism().map_or(1, NonZero::get)).collect();
        }
        Self {
            allowed,
            quotas: quotas(Path::new(CGROUPS), &text("/proc/self/cgroup")),
        }
    }

    /// Writes the limits as text that [`parse`](Self::parse) reads.
    #[cfg(any(feature = "mpi", test))]
    pub(crate) fn to_text(&self) -> String {
        let allowed: Vec<String> = self.allowed.iter().map(usize::to_string).collect();
        let quotas = self
            .quotas
            .iter()
            .map(|quota| format!("{} {}", quota.cpus, quota.group));
        std::iter::once(allowed.join(","))
            .chain(quotas)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[cfg(any(feature = "mpi", test))]
    pub(crate) fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let allowed = numbers(lines.next().unwrap_or_default());
        let quota = |line: &str| {
            let (cpus, group) = line.split_once(' ')?;
            Some(CpuQuota {
                group: group.to_owned(),
                cpus: cpus.parse().ok()?,
            })
        };
        Self {
            allowed,
            quotas: lines.filter_map(quota).collect(),
        }
    }
}

/// Returns the online CPUs of a list. A mask may contain CPUs that the machine does not have. A
/// container may renumber the online CPUs.
fn online(mask: &BTreeSet<usize>, online: &BTreeSet<usize>) -> BTreeSet<usize> {
    let both: BTreeSet<usize> = mask & online;
    if both.is_empty() { mask.clone() } else { both }
}

/// Returns the numbers in a list in Linux's format, such as `0-3,8`.
fn numbers(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part
            .trim()
            .split_once('-')
            .unwrap_or((part.trim(), part.trim()));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Returns the directories of the control group that limits `controller` for a process, then those
/// of its parent groups.
///
/// `groups` is the text of `/proc/self/cgroup`. `root` is the mount directory of the groups. The
/// result has directories for both versions of control groups. Some may not exist: inside a
/// container the mounted root is often the process's own group.
pub fn control_groups(root: &Path, groups: &str, controller: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let top = match controllers {
            "" => root.to_owned(),
            _ if controllers.split(',').any(|name| name == controller) => root.join(controller),
            _ => continue,
        };
        let own = top.join(group.trim_start_matches('/'));
        directories.extend(
            own.ancestors()
                .take_while(|directory| directory.starts_with(&top))
                .map(Path::to_owned),
        );
    }
    directories
}

fn quotas(root: &Path, groups: &str) -> Vec<CpuQuota> {
    let quota = |directory: PathBuf| {
        let text = |name: &str| fs::read_to_string(directory.join(name)).ok();
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let (quota, period) = match text("cpu.max") {
            Some(line) => {
                let (quota, period) = line.trim().split_once(' ')?;
                (number(quota)?, number(period)?)
            }
            None => (
                number(&text("cpu.cfs_quota_us")?)?,
                number(&text("cpu.cfs_period_us")?)?,
            ),
        };
        // Without a limit, version 1 writes -1 and version 2 writes `max`.
        let is_limit = quota > 0.0 && period > 0.0;
        is_limit.then(|| CpuQuota {
            group: directory.display().to_string(),
            cpus: quota / period,
        })
    };
    control_groups(root, groups, "cpu")
        .into_iter()
        .filter_map(quota)
        .collect()
}

/// Returns the number of CPUs, at least 1, that rank `own` of a node may use without taking CPUs of
/// the node's other ranks.
///
/// Ranks whose masks overlap, directly or through other ranks, divide the union of their masks.
/// Ranks with the same quota divide the quota.
///
/// # Panics
/// Panics if `own` is not below the number of limits.
pub(crate) fn share(own: usize, node: &[CpuLimits]) -> usize {
    let mut union = node[own].allowed.clone();
    let mut members = 1;
    loop {
        let meeting: Vec<&CpuLimits> = node
            .iter()
            .filter(|limits| !limits.allowed.is_disjoint(&union))
            .collect();
        if meeting.len() <= members {
            break;
        }
        members = meeting.len();
        union = meeting
            .iter()
            .flat_map(|limits| &limits.allowed)
            .copied()
            .collect();
    }
    let of_masks = node[own].allowed.len().min(union.len() / members);
    let of_quota = |quota: &CpuQuota| {
        let shares =
            |limits: &&CpuLimits| limits.quotas.iter().any(|other| other.group == quota.group);
        (quota.cpus / node.iter().filter(shares).count() as f64) as usize
    };
    node[own]
        .quotas
        .iter()
        .map(of_quota)
        .fold(of_masks, usize::min)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(mask: &str, quotas: &[(&str, f64)]) -> CpuLimits {
        let quota = |&(group, cpus): &(&str, f64)| CpuQuota {
            group: group.to_owned(),
            cpus,
        };
        CpuLimits {
            allowed: numbers(mask),
            quotas: quotas.iter().map(quota).collect(),
        }
    }

    fn shares(masks: &[&str]) -> Vec<usize> {
        let node: Vec<CpuLimits> = masks.iter().map(|mask| limits(mask, &[])).collect();
        (0..node.len()).map(|own| share(own, &node)).collect()
    }

    #[test]
    fn ranks_divide_the_union_of_masks_that_meet_and_use_all_of_a_mask_of_their_own() {
        for (masks, expected) in [
            (&["0-15", "0-15"][..], &[8, 8][..]),
            (&["0-15"; 3], &[5, 5, 5]),
            (&["0-7", "8-15"], &[8, 8]),
            (&["62-63", "62-63"], &[1, 1]),
            (&["0-1"; 4], &[1, 1, 1, 1]),
            (&["0-3", "2-5", "5-7", "8-9"], &[2, 2, 2, 2]),
            (&["0-7", "0"], &[4, 1]),
            (&["0-3", "4"], &[4, 1]),
        ] {
            assert_eq!(shares(masks), expected, "{masks:?}");
        }
    }

    #[test]
    fn ranks_divide_a_quota_with_those_of_the_same_group_only() {
        let of = |quotas: &[&[(&str, f64)]]| {
            let node: Vec<CpuLimits> = quotas.iter().map(|quotas| limits("0-63", quotas)).collect();
            (0..node.len())
                .map(|own| share(own, &node))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[&[("/", 4.0)], &[("/", 4.0)]]), [2, 2]);
        assert_eq!(of(&[&[("/a", 4.0)], &[("/b", 3.5)], &[]]), [4, 3, 21]);
        assert_eq!(
            of(&[&[("/job/a", 8.0), ("/job", 6.0)], &[("/job", 6.0)]]),
            [3, 3]
        );
        assert_eq!(of(&[&[("/", 0.5)]]), [1]);
        assert_eq!(of(&[&[("/", 100.0)]]), [64]);
        for (count, expected) in [(1, 6), (4, 1), (8, 1)] {
            assert_eq!(
                share(0, &vec![limits("0-15", &[("/", 6.5)]); count]),
                expected
            );
        }
    }

    #[test]
    fn quotas_of_both_versions_of_control_groups_are_read_up_to_the_root() {
        let root = tempfile::tempdir().unwrap();
        let write = |directory: &str, name: &str, text: &str| {
            let directory = root.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(name), text).unwrap();
        };
        let found = |groups: &str| -> Vec<(String, f64)> {
            let name = |group: &str| {
                group
                    .strip_prefix(root.path().to_str().unwrap())
                    .unwrap()
                    .to_owned()
            };
            quotas(root.path(), groups)
                .iter()
                .map(|quota| (name(&quota.group), quota.cpus))
                .collect()
        };
        write("job/step", "cpu.max", "max 100000\n");
        write("job", "cpu.max", "250000 100000\n");
        write("cpu/docker/7", "cpu.cfs_quota_us", "-1\n");
        write("cpu/docker", "cpu.cfs_quota_us", "60000\n");
        for directory in ["cpu/docker/7", "cpu/docker"] {
            write(directory, "cpu.cfs_period_us", "20000\n");
        }
        assert_eq!(found("0::/job/step\n"), [("/job".to_owned(), 2.5)]);
        assert_eq!(
            found("4:cpu,cpuacct:/docker/7\n3:cpuset:/job\n"),
            [("/cpu/docker".to_owned(), 3.0)]
        );
        // In a container, the process's group is the root, independent of the host's name of the
        // group.
        write("", "cpu.max", "400000 100000\n");
        assert_eq!(found("0::/kubepods/pod7/4f\n"), [(String::new(), 4.0)]);
    }

    #[test]
    fn limits_are_read_as_they_were_written_and_cpus_that_are_not_online_do_not_count() {
        let limits = limits("0-2,8", &[("/a b", 2.5), ("/", 3.0)]);
        assert_eq!(CpuLimits::parse(&limits.to_text()), limits);
        assert_eq!(online(&numbers("0-127"), &numbers("0-3")), numbers("0-3"));
        assert_eq!(online(&numbers("4-5"), &numbers("0-1")), numbers("4-5"));
        let own = CpuLimits::of_this_process();
        assert!(
            !own.allowed.is_empty() && CpuLimits::parse(&own.to_text()) == own,
            "{own:?}"
        );
    }
}
