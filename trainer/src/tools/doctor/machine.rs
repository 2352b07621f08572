//! Facts of this rank's machine, from Linux.
//!
//! In: `/proc` and `/sys`. Out: plain facts.
//! Invariant: an unknown fact is `None` or empty, never an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use distributed::communicator::{CpuLimits, CpuQuota, control_groups};
use serde::{Deserialize, Serialize};

use super::cpu_set::CpuSet;
use crate::config::choices::nvidia_driver_present;
use crate::config::cli::environment;
use crate::measure::energy;
use crate::measure::manifest::cpu_model;

/// Directory of control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// CPUs of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ProcessorFacts {
    pub(super) model: String,
    /// Identity of the running kernel, which containers of one machine share.
    pub(super) boot: String,
    /// CPUs of the machine in the cpuset of the job's control group.
    pub(super) machine: CpuSet,
    /// Number of the machine's CPUs that the scheduler granted to the job.
    pub(super) granted: Option<usize>,
    /// CPUs in this rank's affinity mask.
    pub(super) allowed: CpuSet,
    /// CPU quotas of this rank's control group and of its ancestors.
    pub(super) quotas: Vec<QuotaFacts>,
    /// Hyper-threads of each core with an allowed CPU. Cores with one CPU are omitted.
    pub(super) siblings: Vec<CpuSet>,
}

/// CPU quota of a control group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct QuotaFacts {
    /// Directory of the group.
    pub(super) group: String,
    /// CPU seconds per second.
    pub(super) cpus: f64,
}

/// Memory of a rank's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryFacts {
    /// Memory available without swapping.
    pub(super) available_bytes: Option<u64>,
    /// Remaining memory under the limit of the job's control group.
    pub(super) group_left_bytes: Option<u64>,
    /// Free space of `/dev/shm`.
    pub(super) shared_free_bytes: Option<u64>,
    /// Maximum number of open files of this process.
    pub(super) open_files: Option<u64>,
}

/// GPUs of a rank's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuFacts {
    pub(super) has_driver: bool,
    pub(super) num_gpus: usize,
}

/// NCCL of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NcclFacts {
    /// Version of the loaded library.
    pub(super) version: Option<String>,
    /// NCCL's files in the loader's directories.
    pub(super) files: Vec<String>,
}

/// A network interface that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InterfaceFacts {
    pub(super) name: String,
    /// Speed as the system reports it.
    pub(super) speed: Option<String>,
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Returns the names in a directory, sorted.
fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns the value of `key` in lines of the form `key value` or `key: value`.
fn value<'a>(lines: &'a str, key: &str) -> Option<&'a str> {
    lines.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        rest.starts_with([':', ' ', '\t'])
            .then(|| rest.trim_start_matches(':').trim())
    })
}

pub(super) fn processors() -> ProcessorFacts {
    let limits = CpuLimits::of_this_process();
    let allowed: CpuSet = limits.allowed.into_iter().collect();
    let online = CpuSet::parse(&text("/sys/devices/system/cpu/online").unwrap_or_default());
    let machine = cpuset(
        Path::new(CGROUPS),
        &text("/proc/self/cgroup").unwrap_or_default(),
    )
    .unwrap_or(online);
    let mut siblings: Vec<CpuSet> = Vec::new();
    for cpu in &*allowed {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let core = CpuSet::parse(&text(path).unwrap_or_default());
        if core.len() > 1 && !siblings.contains(&core) {
            siblings.push(core);
        }
    }
    let boot = text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let granted = environment("SLURM_CPUS_ON_NODE").and_then(|number| number.parse().ok());
    let quotas = limits
        .quotas
        .into_iter()
        .map(|CpuQuota { group, cpus }| QuotaFacts { group, cpus })
        .collect();
    ProcessorFacts {
        model: cpu_model(),
        boot,
        machine,
        granted,
        allowed,
        quotas,
        siblings,
    }
}

/// Returns the cpuset of a process whose `/proc/self/cgroup` has the text `groups`.
fn cpuset(root: &Path, groups: &str) -> Option<CpuSet> {
    const FILES: [&str; 3] = [
        "cpuset.cpus.effective",
        "cpuset.effective_cpus",
        "cpuset.cpus",
    ];
    let read = |directory: &PathBuf| FILES.iter().find_map(|file| text(directory.join(file)));
    let cpus = CpuSet::parse(
        &control_groups(root, groups, "cpuset")
            .iter()
            .find_map(read)?,
    );
    (!cpus.is_empty()).then_some(cpus)
}

pub(super) fn memory() -> MemoryFacts {
    let node = text("/proc/meminfo").unwrap_or_default();
    let kibibytes = value(&node, "MemAvailable")
        .and_then(|value| value.trim_end_matches("kB").trim().parse().ok());
    let limits = text("/proc/self/limits").unwrap_or_default();
    let open_files =
        value(&limits, "Max open files").and_then(|values| values.split_whitespace().next());
    MemoryFacts {
        available_bytes: kibibytes.map(|kibibytes: u64| kibibytes * 1024),
        group_left_bytes: group_left(
            Path::new(CGROUPS),
            &text("/proc/self/cgroup").unwrap_or_default(),
        ),
        shared_free_bytes: free_bytes(Path::new("/dev/shm")).ok(),
        open_files: open_files.and_then(|number| {
            if number == "unlimited" {
                Some(u64::MAX)
            } else {
                number.parse().ok()
            }
        }),
    }
}

/// Returns the bytes that this user may still write on the file system of `path`.
pub(super) fn free_bytes(path: &Path) -> Result<u64, String> {
    let found =
        rustix::fs::statvfs(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns the smallest remaining memory under the limits of a process's control groups.
///
/// `groups` is the process's `/proc/self/cgroup`. The limits are those of its group and of the
/// group's ancestors. Cached pages of files count as free.
fn group_left(root: &Path, groups: &str) -> Option<u64> {
    const VERSION_1: [&str; 3] = [
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ];
    const VERSION_2: [&str; 3] = ["memory.max", "memory.current", "inactive_file"];
    let left = |directory: PathBuf| {
        let number = |name: &str| text(directory.join(name))?.parse::<u64>().ok();
        let [limit, used, cached] = if directory.join(VERSION_2[1]).exists() {
            VERSION_2
        } else {
            VERSION_1
        };
        // Without a limit, version 1 writes the largest number of pages.
        let limit = number(limit).filter(|&limit| limit < 1 << 60)?;
        let used = number(used)?;
        let statistics = text(directory.join("memory.stat")).unwrap_or_default();
        let cached = value(&statistics, cached)
            .and_then(|value| value.parse().ok())
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    };
    control_groups(root, groups, "memory")
        .into_iter()
        .filter_map(left)
        .min()
}

pub(super) fn gpus() -> GpuFacts {
    let by_driver = names("/proc/driver/nvidia/gpus").len();
    let is_device = |name: &String| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let by_device = names("/dev").iter().filter(|name| is_device(name)).count();
    GpuFacts {
        has_driver: nvidia_driver_present(),
        num_gpus: if by_device > 0 { by_device } else { by_driver },
    }
}

pub(super) fn nccl() -> NcclFacts {
    #[cfg(feature = "nccl")]
    let version = distributed::gradients::library_version();
    #[cfg(not(feature = "nccl"))]
    let version = None;
    let cache = Command::new("/sbin/ldconfig").arg("-p").output();
    let cache = cache.map_or(Vec::new(), |output| output.stdout);
    let folders = environment("LD_LIBRARY_PATH").unwrap_or_default();
    let files = nccl_files(&folders, &String::from_utf8_lossy(&cache), Path::exists);
    NcclFacts { version, files }
}

/// Returns NCCL's files in the directories of LD_LIBRARY_PATH and in the output of `ldconfig -p`.
fn nccl_files(folders: &str, cache: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    // In the order in which `distributed` loads them.
    const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
    let folders = folders.split(':').filter(|folder| !folder.is_empty());
    let in_folders = folders.flat_map(|folder| NAMES.map(|name| Path::new(folder).join(name)));
    let in_folders = in_folders.filter(|path| exists(path));
    let in_cache = cache.lines().filter_map(|line| {
        let (name, path) = line.split_once(" => ")?;
        let is_nccl = NAMES.contains(&name.split_whitespace().next()?);
        is_nccl.then(|| path.trim().to_owned())
    });
    in_folders
        .map(|path| path.display().to_string())
        .chain(in_cache)
        .collect()
}

/// Returns the number of packages with readable energy.
pub(super) fn energy() -> Result<usize, String> {
    let packages = energy::Packages::open(Path::new(energy::POWERCAP))
        .map_err(|error| format!("{error:#}"))?;
    Ok(packages.num_packages())
}

/// Returns the network interfaces that are up.
pub(super) fn interfaces() -> Vec<InterfaceFacts> {
    let mut found = Vec::new();
    let network = Path::new("/sys/class/net");
    for name in names(network) {
        if text(network.join(&name).join("operstate")).as_deref() == Some("up") {
            let speed =
                text(network.join(&name).join("speed")).and_then(|speed| speed.parse::<u64>().ok());
            found.push(InterfaceFacts {
                name,
                speed: speed.map(|speed| format!("{speed} Mbit/s")),
            });
        }
    }
    let devices = Path::new("/sys/class/infiniband");
    for device in names(devices) {
        for port in names(devices.join(&device).join("ports")) {
            let port = devices.join(&device).join("ports").join(port);
            if text(port.join("state")).is_some_and(|state| state.contains("ACTIVE")) {
                let name = format!("InfiniBand {device}");
                found.push(InterfaceFacts {
                    name,
                    speed: text(port.join("rate")),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(name), text).unwrap();
    }

    #[test]
    fn a_value_is_that_of_the_whole_key() {
        let lines = "Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\ninactive_file 12\nMax open files            1024     4096    files";
        assert_eq!(value(lines, "Cpus_allowed_list"), Some("0-7"));
        assert_eq!(value(lines, "inactive_file"), Some("12"));
        assert_eq!(
            value(lines, "Max open files"),
            Some("1024     4096    files")
        );
        assert_eq!(value(lines, "Cpus"), None);
    }

    #[test]
    fn a_limit_around_the_group_counts_and_cached_files_are_free() {
        let root = tempfile::tempdir().unwrap();
        let job = root.path().join("job");
        let step = root.path().join("job/step");
        write(&step, "memory.max", "max\n");
        write(&step, "memory.current", "100\n");
        write(&job, "memory.max", "1000\n");
        write(&job, "memory.current", "900\n");
        write(&job, "memory.stat", "anon 100\ninactive_file 500\n");
        assert_eq!(group_left(root.path(), "0::/job/step"), Some(600));
        assert_eq!(group_left(root.path(), "0::/"), None);
    }

    #[test]
    fn the_old_form_of_groups_is_read_and_its_largest_number_is_no_limit() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        write(&memory, "memory.limit_in_bytes", "9223372036854771712");
        write(&memory, "memory.usage_in_bytes", "5");
        write(&memory.join("job"), "memory.limit_in_bytes", "70");
        write(&memory.join("job"), "memory.usage_in_bytes", "50");
        let groups = "9:name=systemd:/\n4:memory:/job\n0::/\n";
        assert_eq!(group_left(root.path(), groups), Some(20));
        assert_eq!(group_left(root.path(), "4:memory:/"), None);
    }

    #[test]
    fn the_cpus_of_a_job_are_those_of_its_control_group() {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join("job"), "cpuset.cpus.effective", "4-7\n");
        write(&root.path().join("cpuset/docker"), "cpuset.cpus", "2-3\n");
        for (groups, expected) in [
            ("0::/job/step\n", Some("4-7")),
            ("3:cpuset:/docker/7\n", Some("2-3")),
            ("0::/other\n", None),
        ] {
            assert_eq!(
                cpuset(root.path(), groups),
                expected.map(CpuSet::parse),
                "{groups}"
            );
        }
    }

    #[test]
    fn nccl_is_found_in_the_loaders_folders_and_cache() {
        let cache = "1 libs found in cache `/etc/ld.so.cache'\n\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2\n\
            \tlibnccl-net.so (libc6,x86-64) => /usr/lib/libnccl-net.so\n";
        let exists = |path: &Path| path == Path::new("/opt/nccl/libnccl.so");
        assert_eq!(
            nccl_files("/opt/a::/opt/nccl", cache, exists),
            ["/opt/nccl/libnccl.so", "/usr/lib/libnccl.so.2"]
        );
        assert!(nccl_files("", "", |_| true).is_empty());
    }

    #[test]
    fn the_facts_of_this_machine_are_found() {
        let processors = processors();
        assert!(
            !processors.allowed.is_disjoint(&processors.machine),
            "{processors:?}"
        );
        assert!(
            memory()
                .available_bytes
                .is_some_and(|bytes| bytes > 1 << 20)
        );
        assert!(memory().open_files.is_some());
    }
}
