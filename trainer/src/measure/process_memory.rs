//! The memory of this process.
//!
//! In: `/proc` of Linux. Out: bytes and page faults; 0 on other systems.

use std::fs;

/// Returns the largest resident memory of this process so far, bytes (`VmHWM`).
pub fn peak_memory_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// Returns the current resident memory of this process, bytes (`VmRSS`).
pub fn resident_memory_bytes() -> u64 {
    status_bytes("VmRSS:")
}

fn status_bytes(field: &str) -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| bytes_of(&status, field))
        .unwrap_or(0)
}

/// Returns the number of pages that the system has supplied to all threads of this process.
///
/// The number is field 10 of `/proc/self/stat`. A step that reuses its memory needs no new pages.
pub fn minor_page_faults() -> u64 {
    fs::read_to_string("/proc/self/stat")
        .ok()
        .and_then(|stat| minor_faults(&stat))
        .unwrap_or(0)
}

fn minor_faults(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may contain spaces.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(7)?
        .parse()
        .ok()
}

fn bytes_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_are_read_behind_a_name_with_spaces() {
        assert_eq!(
            minor_faults("7 (a b) c) S 1 7 7 0 -1 4194304 1234 0 5 0 1 2"),
            Some(1234)
        );
        assert_eq!(minor_faults("7 (a"), None);
        assert!(!cfg!(target_os = "linux") || minor_page_faults() > 100);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            bytes_of("VmPeak:\t 9 kB\nVmHWM:\t   2048 kB\n", "VmHWM:"),
            Some(2 * 1024 * 1024)
        );
        assert_eq!(bytes_of("VmPeak: 9 kB\n", "VmHWM:"), None);
        assert!(!cfg!(target_os = "linux") || peak_memory_bytes() > 1024 * 1024);
        assert!(!cfg!(target_os = "linux") || resident_memory_bytes() > 1024 * 1024);
    }
}
