//! The use of the machine by other processes.
//!
//! In: Linux's accounts in /proc. Out: [`OtherUse`] of a moment and of a run, [`Watch`].
//! Invariant: a look costs a few milliseconds every half second. The kernel's time for interrupts,
//! as for an emulated network, counts for no process. Without /proc nothing counts as disturbed.
//! Source: Hoefler & Belli 2015, Scientific benchmarking of parallel computing systems, rule 9
//! (document the environment).

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use records::OtherCores;

use self::accounts::{Accounts, Own};
use cluster::failure::{Outcome, failed};

mod accounts;

/// Variable with the run of a process that is not a descendant: on an emulated host, under Slurm.
pub(crate) const MARK: &str = "LOCKSTEP_WATCH";

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Duration of a look at a machine without runs of this program.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Use of the CPUs by others, in cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct OtherUse {
    /// CPU time of other processes over wall-clock time.
    pub(crate) other_cores: f64,
    /// Time that a hypervisor gave to other virtual machines.
    pub(crate) steal_cores: f64,
}

impl OtherUse {
    fn between(first: &Accounts, last: &Accounts) -> Self {
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        if seconds <= 0.0 {
            return OtherUse::default();
        }
        let others = (last.busy_s - first.busy_s) - (last.own_s - first.own_s);
        OtherUse {
            other_cores: others.max(0.0) / seconds,
            steal_cores: (last.steal_s - first.steal_s).max(0.0) / seconds,
        }
    }

    /// Returns the use by all others.
    pub(crate) fn cores(&self) -> f64 {
        self.other_cores + self.steal_cores
    }

    fn rounded(self) -> OtherCores {
        let rounded = |cores: f64| Some((cores * 1e4).round() / 1e4);
        OtherCores {
            other_cores: rounded(self.other_cores),
            steal_cores: rounded(self.steal_cores),
        }
    }
}

/// Waits until others use at most `limit_cores`, for at most `patience`; returns their use in the
/// last second.
pub(crate) fn wait(limit_cores: f64, patience: Duration) -> OtherUse {
    let start = Instant::now();
    let mut own = Own::new("-");
    loop {
        let first = own.look();
        thread::sleep(FIRST_LOOK);
        let quiet = OtherUse::between(&first, &own.look());
        if quiet.cores() <= limit_cores || start.elapsed() >= patience {
            return quiet;
        }
    }
}

/// Observations during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) quiet: OtherUse,
    /// Lowest and highest clock rate of any CPU, megahertz; absent if unknown.
    pub(crate) mhz: Option<(f64, f64)>,
}

/// Observes the machine during a run.
pub(crate) struct Watch {
    stop: Sender<()>,
    looks: JoinHandle<Vec<Accounts>>,
}

impl Watch {
    /// Begins to observe. Descendants of this process, and processes with [`MARK`] set to `mark`,
    /// belong to the run.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub(crate) fn start(mark: &str) -> Outcome<Self> {
        let mut own = Own::new(mark);
        let (stop, stopped) = mpsc::channel();
        let mut looks = vec![own.look()];
        let looks = Builder::new().name("watch".to_owned()).spawn(move || {
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                looks.push(own.look());
            }
            looks.push(own.look());
            looks
        });
        let refused = |error| {
            let remedy = "raise the limit of processes (ulimit -u, pids.max of the cgroup)";
            failed!("the operating system refused a thread ({error}); {remedy}")
        };
        Ok(Watch {
            stop,
            looks: looks.map_err(refused)?,
        })
    }

    /// Ends the observation.
    pub(crate) fn finish(self) -> Looks {
        let _ = self.stop.send(());
        Looks(self.looks.join().unwrap_or_default())
    }
}

/// Looks at the machine during a run that has ended.
#[derive(Debug)]
pub(crate) struct Looks(Vec<Accounts>);

impl Looks {
    /// Returns the use during the run, or between the looks around its measured part (seconds since
    /// 1970): others may work while the run starts.
    ///
    /// The time up to the last look counts if processes of the run waited for all others that
    /// ended. Otherwise the CPU time between a look and an end is unknown, and the last look with a
    /// living process of the run counts.
    pub(crate) fn seen(&self, measured_unix_s: Option<[f64; 2]>) -> Seen {
        let looks = measured_unix_s
            .and_then(|measured| self.around(measured))
            .unwrap_or(&self.0);
        let mut seen = Seen::default();
        if let (Some(first), Some(last)) = (looks.first(), looks.last()) {
            let last_running = || looks.iter().rfind(|look| look.num_own > 0);
            let end = match last.lost_s == first.lost_s {
                true => last,
                false => last_running().unwrap_or(first),
            };
            seen.quiet = OtherUse::between(first, end);
        }
        for (low, high) in looks.iter().filter_map(|look| look.mhz) {
            let so_far = seen.mhz.unwrap_or((low, high));
            seen.mhz = Some((so_far.0.min(low), so_far.1.max(high)));
        }
        seen
    }

    /// Returns the looks from the last one before to the first one after.
    fn around(&self, [begin, end]: [f64; 2]) -> Option<&[Accounts]> {
        let first = self.0.iter().rposition(|look| look.unix_s <= begin)?;
        let last = self.0.iter().position(|look| look.unix_s >= end)?;
        self.0.get(first..=last)
    }
}

/// Returns the entry of a record; without a check there is no limit.
pub(crate) fn record(before: OtherUse, during: &Seen, limit_cores: Option<f64>) -> records::Quiet {
    records::Quiet {
        before: Some(before.rounded()),
        during: Some(during.quiet.rounded()),
        mhz_min: during.mhz.map(|mhz| mhz.0),
        mhz_max: during.mhz.map(|mhz| mhz.1),
        limit_cores,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Uses the CPU for 1 s of its time.
    const BURN: &str = "while [ $(cut -d' ' -f14 /proc/$$/stat) -lt 100 ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done";

    fn accounts(seconds: u64, busy_s: f64, steal_s: f64, own_s: f64) -> Accounts {
        let at = Instant::now() + Duration::from_secs(seconds);
        Accounts {
            at,
            unix_s: seconds as f64,
            busy_s,
            steal_s,
            own_s,
            lost_s: 0.0,
            num_own: 1,
            mhz: None,
        }
    }

    #[test]
    fn others_use_the_busy_time_that_is_not_of_the_run() {
        let quiet = OtherUse::between(
            &accounts(0, 100.0, 5.0, 10.0),
            &accounts(10, 118.0, 6.0, 25.0),
        );
        assert!(
            (quiet.other_cores - 0.3).abs() < 1e-3 && (quiet.steal_cores - 0.1).abs() < 1e-3,
            "{quiet:?}"
        );
        assert!((quiet.cores() - 0.4).abs() < 1e-3);
        let ours_alone =
            OtherUse::between(&accounts(0, 0.0, 0.0, 0.0), &accounts(10, 9.9, 0.0, 10.0));
        assert_eq!(ours_alone.other_cores, 0.0);
    }

    #[test]
    fn others_count_while_steps_are_measured_and_not_while_a_run_starts() {
        // Others used a whole core in the first 10 of 30 seconds.
        let at = |seconds: u64, busy_s: f64| accounts(seconds, busy_s, 0.0, seconds as f64);
        let looks = Looks(vec![at(0, 0.0), at(10, 20.0), at(20, 30.0), at(30, 40.0)]);
        let others = |measured: Option<[f64; 2]>| looks.seen(measured).quiet.other_cores;
        assert!((others(None) - 1.0 / 3.0).abs() < 1e-3);
        assert!(others(Some([10.5, 29.0])).abs() < 1e-3);
        assert!(
            (others(Some([9.5, 15.0])) - 0.5).abs() < 1e-3,
            "a part of it lies in the first seconds"
        );
        assert!(
            (others(Some([-5.0, 15.0])) - 1.0 / 3.0).abs() < 1e-3,
            "without an earlier look the whole run counts"
        );
    }

    #[test]
    fn work_of_children_and_of_marked_processes_counts_for_the_run() {
        let mark = format!("test-{}", std::process::id());
        let mut own = Own::new(&mark);
        let first = own.look();
        let mut child = Command::new("sh").args(["-c", BURN]).spawn().unwrap();
        // The parent of the second one ends at once, like a daemon's.
        let mut daemon = Command::new("setsid");
        daemon
            .args(["sh", "-c", "sh -c \"$1\" >/dev/null 2>&1 &", "daemon", BURN])
            .env(MARK, &mark);
        assert!(daemon.status().unwrap().success());
        let start = Instant::now();
        let mut last = own.look();
        // One of them uses hardly more than 1 s.
        while last.own_s - first.own_s < 1.9 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{last:?} after {first:?}"
            );
            thread::sleep(Duration::from_millis(20));
            last = own.look();
        }
        child.wait().unwrap();
        let ended = own.look();
        assert!(
            ended.own_s >= last.own_s,
            "what has ended stays counted: {ended:?} after {last:?}"
        );
        assert!(
            last.busy_s - first.busy_s >= 1.1,
            "{last:?} after {first:?}"
        );
    }

    #[test]
    fn a_watch_ends_and_reports_no_negative_numbers() {
        let watch = Watch::start("-").unwrap();
        assert!(
            Command::new("sh")
                .args(["-c", "sleep 0.7"])
                .status()
                .unwrap()
                .success()
        );
        let seen = watch.finish().seen(None);
        assert!(seen.quiet.other_cores >= 0.0 && seen.quiet.steal_cores >= 0.0);
        let record = record(OtherUse::default(), &seen, Some(0.2));
        assert_eq!(record.limit_cores, Some(0.2));
        assert!(
            record
                .during
                .is_some_and(|during| during.other_cores.is_some())
        );
    }

    #[test]
    fn no_wait_outlasts_its_patience() {
        let start = Instant::now();
        let quiet = wait(-1.0, Duration::from_millis(100));
        assert!(quiet.cores() >= 0.0);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
