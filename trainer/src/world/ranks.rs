//! Who computes: the communicator this process belongs to, and the device it computes on.
//!
//! In: a [`Communicator`], the environment of the launcher, `--device`. Out: a [`World`] and a burn [`Device`].
//! Invariant: ranks left unbound share the processors of their machine.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use burn::tensor::{Device, FloatDType};
use distributed::{
    CollectiveError, Communicator, ROOT,
    communicator::Topology,
    launch::Launcher,
    watchdog::{Alarm, RankStatus, Watchdog, WatchedCommunicator},
};

use crate::config::ComputeSection;
#[cfg(feature = "cuda")]
use crate::config::choices::nvidia_driver_present;
use crate::config::{DeviceChoice, Dtype};
use crate::measure::report::{self, Reporter};
use crate::world::stop::StopFlag;
use crate::world::switches;

/// The job is ended after this time, whether an alarm is written or not: a file system may hang.
const MOST_OF_AN_ALARM: Duration = Duration::from_secs(1);

/// What a rank is handed at its start.
#[derive(Debug)]
pub struct World {
    pub communicator: Arc<dyn Communicator>,
    /// The communicator of the watchdog, whose calls are not noted in `rank_status`.
    pub(crate) unwatched: Arc<dyn Communicator>,
    /// What this rank is doing, for the others' sake.
    pub rank_status: Arc<RankStatus>,
    /// Raised when somebody wants this rank to stop.
    pub stop: StopFlag,
    pub reporter: Reporter,
    /// Whether this thread is the process's only rank, and so computes as one of its compute threads. Ranks that are threads
    /// of one process must not: a rank that waits for the others would keep work that they wait for.
    pub is_only_rank: bool,
}

impl World {
    /// This rank's part of the world of `communicator`; root speaks on the console.
    pub fn new(communicator: Arc<dyn Communicator>, stop: StopFlag) -> Self {
        let reporter = Reporter::new(communicator.rank() == ROOT, None);
        Self::reporting(communicator, stop, reporter)
    }

    /// As [`new`](Self::new), with root's words going to `reporter`.
    pub fn reporting(
        communicator: Arc<dyn Communicator>,
        stop: StopFlag,
        reporter: Reporter,
    ) -> Self {
        let rank_status = Arc::new(RankStatus::new().counting(datasets::progress));
        let watched = WatchedCommunicator::new(Arc::clone(&communicator), Arc::clone(&rank_status));
        Self {
            communicator: Arc::new(watched),
            unwatched: communicator,
            rank_status,
            stop,
            reporter,
            is_only_rank: false,
        }
    }

    /// Ends the job when a rank waits for longer than `timeout` for another that makes no progress, saying which. To be dropped after
    /// a last barrier.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When a collective fails. Without support for threads there is a warning instead, and no watch.
    pub fn watch(&self, timeout: Duration) -> Result<Option<Watchdog>> {
        let reporter = self.reporter.clone();
        let say = Box::new(move |alarm: &Alarm| {
            let (text, reporter) = (alarm.to_string(), reporter.clone());
            let thread = Builder::new().name("alarm".to_owned());
            let started = wait_for(thread, MOST_OF_AN_ALARM, move || {
                report::alarm(&text);
                reporter.log(&text);
            });
            // The log may lie where writing hangs.
            if let Err(error) = started {
                report::alarm(&format!(
                    "{alarm}\nnot in the log: no thread could be started: {error}"
                ));
            }
        });
        match Watchdog::start(
            &*self.unwatched,
            Arc::clone(&self.rank_status),
            timeout,
            say,
        ) {
            Ok(watchdog) => Ok(Some(watchdog)),
            Err(error @ CollectiveError::WatchdogNeedsThreads { .. }) => {
                self.reporter.warn(&error.to_string());
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends a watch after a barrier: after it no rank waits for another.
    /// Collective: all ranks.
    pub fn end_watch(&self, watchdog: Option<Watchdog>) -> Result<()> {
        self.communicator.barrier()?;
        drop(watchdog);
        Ok(())
    }

    /// Whether this rank acts for all.
    pub fn is_root(&self) -> bool {
        self.communicator.rank() == ROOT
    }

    /// Refuses to be one of several, for a `command` that makes no use of others.
    ///
    /// # Errors
    /// When there is more than one rank.
    pub fn expect_one_process(&self, command: &str) -> Result<()> {
        let number = self.communicator.world_size();
        ensure!(
            number == 1,
            "{command}: expected one process, got {number}; start it without a launcher"
        );
        Ok(())
    }

    /// The device that `choice` means on this rank, and the threads it computes with, set for this process.
    ///
    /// # Errors
    /// When the backend is not built in, or has no driver here, or the launcher's words are not numbers.
    pub fn prepare_compute(&self, compute: &ComputeSection) -> Result<(Device, usize)> {
        self.prepare(compute, self.is_only_rank)
    }

    /// As [`prepare_compute`](Self::prepare_compute), for a rank that will wait for threads of its own that compute as ranks.
    pub fn prepare_compute_of_threads(&self, compute: &ComputeSection) -> Result<(Device, usize)> {
        self.prepare(compute, false)
    }

    fn prepare(&self, compute: &ComputeSection, caller_included: bool) -> Result<(Device, usize)> {
        let topology = self.communicator.topology();
        let num_threads = compute
            .threads
            .map_or_else(|| share_of_threads(topology), Ok)?;
        let num_threads = set_threads(num_threads, caller_included)?;
        switches::choose_layers()?;
        let device = device(compute.device, topology)?;
        let dtype = match compute.dtype() {
            Dtype::F32 => FloatDType::F32,
            Dtype::Bf16 => FloatDType::BF16,
            Dtype::F16 => FloatDType::F16,
        };
        ensure!(
            device.supports_dtype(dtype),
            "--dtype {}: expected a device that computes with it, got {device:?}; use --dtype f32",
            compute.dtype()
        );
        Ok((device, num_threads))
    }
}

/// Lets a thread do something and waits for it, no longer than `limit`.
fn wait_for(
    thread: Builder,
    limit: Duration,
    something: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let (done, waits) = channel::<()>();
    thread.spawn(move || {
        something();
        drop(done);
    })?;
    // Nothing is sent: the thread's end says enough.
    let _ = waits.recv_timeout(limit);
    Ok(())
}

/// The device that `choice` means. `cuda` without an index takes the rank's index on its node.
///
/// # Errors
/// When the backend is not built in.
fn device(choice: DeviceChoice, topology: &Topology) -> Result<Device> {
    let missing = |feature: &str| {
        format!(
            "device {feature}: this program was built without it, expected the cargo feature `{feature}`; rebuild with --features {feature}"
        )
    };
    match choice {
        #[cfg(feature = "flex")]
        DeviceChoice::Flex => Ok(Device::flex()),
        #[cfg(not(feature = "flex"))]
        DeviceChoice::Flex => bail!(missing("flex")),
        #[cfg(feature = "ndarray")]
        #[expect(
            deprecated,
            reason = "burn deprecates ndarray in favour of flex; it stays here for comparison"
        )]
        DeviceChoice::Ndarray => Ok(Device::ndarray()),
        #[cfg(not(feature = "ndarray"))]
        DeviceChoice::Ndarray => bail!(missing("ndarray")),
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => {
            if !nvidia_driver_present() {
                bail!(
                    "device cuda: no NVIDIA driver on node {}, expected /proc/driver/nvidia; use --device flex",
                    topology.node
                );
            }
            #[cfg(feature = "kernel-cache")]
            crate::world::kernel_cache::use_the_users_folder();
            switches::remove_fusers()?;
            Ok(Device::cuda(index.unwrap_or(topology.local_rank)))
        }
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => {
            let _ = topology;
            bail!(missing("cuda"))
        }
    }
}

/// Returns the number of threads that are a rank's share of the CPUs of its node, at most what the launcher says that it gave the rank.
///
/// # Errors
/// When a launcher's variable is not a number.
pub(crate) fn share_of_threads(topology: &Topology) -> Result<usize> {
    // A scheduler that binds nothing leaves a rank on all CPUs of a node, also on those of other jobs.
    let allotted =
        Launcher::detect_from_environment()?.and_then(|launcher| launcher.num_processors);
    Ok(topology.num_cpus.min(allotted.unwrap_or(usize::MAX)).max(1))
}

/// Sets the number of compute threads of this process, the calling one among them if so wished, and returns the number in
/// force. A caller outside its pool would hand every operation over to other threads and caches.
///
/// # Errors
/// When the operating system refuses a thread.
fn set_threads(num_threads: usize, caller_included: bool) -> Result<usize> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads);
    let pool = if caller_included {
        pool.use_current_thread()
    } else {
        pool
    };
    // The pool can be built once in a process; thread-ranks share the first one's.
    match pool.build_global() {
        Ok(()) => Ok(num_threads),
        Err(error) => match error.source() {
            // The first pool of this process is there.
            None => Ok(rayon::current_num_threads()),
            Some(reason) => bail!(
                "--threads {num_threads}: the operating system refused a compute thread ({reason}); use fewer, or raise the limit of processes (ulimit -u, pids.max of the cgroup)"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::wait_for;
    use std::sync::mpsc::channel;
    use std::thread::Builder;
    use std::time::{Duration, Instant};

    #[test]
    fn an_alarm_is_waited_for_and_one_that_cannot_be_written_for_no_longer_than_its_limit() {
        let (written, is_written) = channel();
        wait_for(Builder::new(), Duration::from_secs(60), move || {
            written.send(()).unwrap()
        })
        .unwrap();
        assert!(is_written.try_recv().is_ok());
        let (_hangs, end) = channel::<()>();
        let start = Instant::now();
        wait_for(Builder::new(), Duration::from_millis(10), move || {
            _ = end.recv()
        })
        .unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn an_alarm_without_a_thread_is_known_to_be_unwritten() {
        let thread = Builder::new().stack_size(1 << 60);
        assert!(
            wait_for(thread, Duration::from_secs(60), || unreachable!(
                "no thread has such a stack"
            ))
            .is_err()
        );
    }
}
