//! Linux's accounts of CPU time.
//!
//! In: /proc/stat, /proc/PID/stat, /proc/PID/environ, /proc/cpuinfo. Out: [`Accounts`].
//! Invariant: no process counts twice, and the sum never falls. A process that has ended counts in
//! its parent's time of children. If no process of the run waited for it, its time of the last look
//! counts. Times are in the kernel's 1/100 s.
//! Source: proc(5).

use std::collections::HashMap;
use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::MARK;

/// USER_HZ, fixed by Linux for all programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds since a fixed time.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    pub(super) at: Instant,
    /// The same moment in seconds since 1970.
    pub(super) unix_s: f64,
    /// In user and kernel mode, without interrupts.
    pub(super) busy_s: f64,
    pub(super) steal_s: f64,
    /// Part of processes of the run, also of ended ones; never falls.
    pub(super) own_s: f64,
    /// Part of ended processes that no process of the run waited for; their time after the last
    /// look is missing.
    pub(super) lost_s: f64,
    /// Number of processes of the run, without this one.
    pub(super) num_own: usize,
    pub(super) mhz: Option<(f64, f64)>,
}

/// Recognises processes of the run.
pub(super) struct Own {
    mark: Vec<u8>,
    /// Processes of the run at the last look, by their number.
    living: HashMap<u32, Process>,
    lost_ticks: u64,
    most_ticks: u64,
}

impl Own {
    pub(super) fn new(mark: &str) -> Self {
        Own {
            mark: format!("{MARK}={mark}").into_bytes(),
            living: HashMap::new(),
            lost_ticks: 0,
            most_ticks: 0,
        }
    }

    pub(super) fn look(&mut self) -> Accounts {
        let (busy_s, steal_s) =
            machine_seconds(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let at = Instant::now();
        let now = SystemTime::now();
        let unix_s = now
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let processes: Vec<Process> = processes();
        let this = std::process::id();
        let is_ours = |process: &&Process| {
            let was_ours = self
                .living
                .get(&process.id)
                .is_some_and(|known| known.start == process.start);
            was_ours || is_descendant(process, &processes, this) || self.is_marked(process.id)
        };
        let own: Vec<Process> = processes.iter().filter(is_ours).cloned().collect();
        self.count(own);
        let num_own = self
            .living
            .values()
            .filter(|process| process.id != this && !process.has_ended)
            .count();
        let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
        let mhz = megahertz(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let own_s = seconds(self.most_ticks);
        let lost_s = seconds(self.lost_ticks);
        Accounts {
            at,
            unix_s,
            busy_s,
            steal_s,
            own_s,
            lost_s,
            num_own,
            mhz,
        }
    }

    /// Replaces the processes of the last look by the present ones.
    fn count(&mut self, own: Vec<Process>) {
        let now: HashMap<u32, Process> = own
            .into_iter()
            .map(|process| (process.id, process))
            .collect();
        let is_there = |known: &Process| {
            now.get(&known.id)
                .is_some_and(|process| process.start == known.start)
        };
        for ended in self.living.values().filter(|known| !is_there(known)) {
            // Ended parents have passed on the time of their children.
            let mut above = self.living.get(&ended.parent);
            let mut steps = 0..self.living.len();
            while let Some(parent) =
                above.filter(|parent| !is_there(parent) && steps.next().is_some())
            {
                above = self.living.get(&parent.parent);
            }
            if !above.is_some_and(is_there) {
                self.lost_ticks += ended.all_ticks();
            }
        }
        self.living = now;
        // A child that ends between the looks at its parent and at itself is missing once.
        let ticks = self.lost_ticks + self.living.values().map(Process::all_ticks).sum::<u64>();
        self.most_ticks = self.most_ticks.max(ticks);
    }

    fn is_marked(&self, process: u32) -> bool {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == self.mark)
    }
}

/// One process in /proc.
#[derive(Clone, Debug, PartialEq)]
struct Process {
    id: u32,
    parent: u32,
    /// Ticks from the machine's start to the process's.
    start: u64,
    /// Its own ticks.
    ticks: u64,
    /// Ticks of ended children that it has waited for, with theirs.
    waited_ticks: u64,
    /// True if it has ended and its parent has not waited for it.
    has_ended: bool,
}

impl Process {
    fn all_ticks(&self) -> u64 {
        self.ticks + self.waited_ticks
    }
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| process(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?))
        .collect()
}

fn is_descendant(process: &Process, all: &[Process], of: u32) -> bool {
    let mut id = process.id;
    // Bounded, as the list changes meanwhile.
    for _ in 0..all.len() {
        if id == of {
            return true;
        }
        match all.iter().find(|process| process.id == id) {
            Some(process) if process.parent != 0 => id = process.parent,
            _ => return false,
        }
    }
    false
}

/// Reads /proc/PID/stat.
fn process(stat: &str) -> Option<Process> {
    let id = stat.split(' ').next()?.parse().ok()?;
    // The name is in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    // The manual counts fields from 1; these begin with the third.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Process {
        id,
        parent: number(4)? as u32,
        start: number(22)?,
        ticks: number(14)? + number(15)?,
        waited_ticks: number(16)? + number(17)?,
        has_ended: fields.first() == Some(&"Z"),
    })
}

/// Returns busy and stolen seconds of all CPUs.
fn machine_seconds(stat: &str) -> (f64, f64) {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap_or(0.0))
        .collect();
    let of = |place: usize| ticks.get(place).copied().unwrap_or(0.0) / TICKS_PER_SECOND;
    // user, nice, system, idle, iowait, irq, softirq, steal
    (of(0) + of(1) + of(2), of(7))
}

/// Returns the lowest and highest clock rate of the CPUs.
fn megahertz(cpuinfo: &str) -> Option<(f64, f64)> {
    let lines = cpuinfo.lines().filter(|line| line.starts_with("cpu MHz"));
    let rates: Vec<f64> = lines
        .filter_map(|line| line.split_once(':')?.1.trim().parse().ok())
        .collect();
    let first = *rates.first()?;
    Some(rates.iter().fold((first, first), |(low, high), rate| {
        (rate.min(low), rate.max(high))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_line_is_read_without_interrupts() {
        let stat = "cpu  1000 50 250 90000 10 7 33 20 0 0\ncpu0 500 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(machine_seconds(stat), (13.0, 0.2));
        assert_eq!(machine_seconds(""), (0.0, 0.0));
    }

    #[test]
    fn a_process_with_an_odd_name_is_read() {
        let stat =
            "4242 (a) b (c) S 17 4242 4242 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 1 0 987654 1000 10";
        let expected = Process {
            id: 4242,
            parent: 17,
            start: 987_654,
            ticks: 300,
            waited_ticks: 15,
            has_ended: false,
        };
        assert_eq!(process(stat), Some(expected));
        assert_eq!(process("4242 (a"), None);
    }

    fn process_of(id: u32, parent: u32, ticks: u64, waited_ticks: u64) -> Process {
        Process {
            id,
            parent,
            start: 0,
            ticks,
            waited_ticks,
            has_ended: false,
        }
    }

    #[test]
    fn descent_goes_over_several_parents_and_ends() {
        let of = |id, parent| process_of(id, parent, 0, 0);
        let all = [of(1, 0), of(5, 1), of(6, 5), of(7, 6), of(8, 8)];
        assert!(is_descendant(&all[3], &all, 5));
        assert!(!is_descendant(&all[1], &all, 6));
        assert!(!is_descendant(&all[4], &all, 5));
    }

    #[test]
    fn an_ended_process_counts_once_in_the_time_of_its_parent_or_of_the_last_look() {
        let mut own = Own::new("-");
        // A program with a child and its child, and a daemon with a child; 1 is not of the run.
        own.count(vec![
            process_of(5, 1, 10, 0),
            process_of(6, 5, 20, 0),
            process_of(7, 6, 30, 0),
            process_of(8, 1, 40, 3),
            process_of(9, 8, 50, 0),
        ]);
        assert_eq!((own.most_ticks, own.lost_ticks), (153, 0));
        // 6 and 7 have ended after 5 more ticks, each waited for by its parent.
        own.count(vec![
            process_of(5, 1, 10, 55),
            process_of(8, 1, 40, 3),
            process_of(9, 8, 50, 0),
        ]);
        assert_eq!((own.most_ticks, own.lost_ticks), (158, 0));
        // The daemon and its child have ended; their ticks since the last look are unknown.
        own.count(vec![process_of(5, 1, 10, 55)]);
        assert_eq!((own.most_ticks, own.lost_ticks), (158, 93));
        // A child is missing if its parent was read before the child ended.
        own.count(vec![process_of(5, 1, 5, 0)]);
        assert_eq!(own.most_ticks, 158);
    }

    #[test]
    fn clock_rates_are_the_lowest_and_the_highest() {
        let cpuinfo = "processor: 0\ncpu MHz\t\t: 2500.5\nprocessor: 1\ncpu MHz\t\t: 3100.0\n";
        assert_eq!(megahertz(cpuinfo), Some((2500.5, 3100.0)));
        assert_eq!(megahertz("model name: x"), None);
    }
}
