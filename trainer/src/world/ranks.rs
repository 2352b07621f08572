//! This rank of the job: its communicator, its role, its device and its threads.
//!
//! In: a [`Communicator`], the environment of the launcher, `--device`. Out: a [`World`], a
//! [`Role`] and a burn [`Device`].
//! Invariant: ranks that are not bound share the CPUs of their machine. Ranks that train are the
//! first of the world.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use burn::tensor::{Device, FloatDType};
use distributed::communicator::{Launcher, Topology};
use distributed::watchdog::{Alarm, RankStatus, Watchdog, WatchedCommunicator};
use distributed::{CollectiveError, Communicator, ROOT};

#[cfg(feature = "cuda")]
use crate::config::choices::nvidia_driver_present;
use crate::config::{Activations, ComputeSection, DeviceChoice, SyncSection, instruction_set};
use crate::measure::report::{self, Reporter};
use crate::world::stop::StopFlag;
use crate::world::switches;

/// Limit of the time for writing an alarm before the job is ended: a file system may hang.
const MOST_OF_AN_ALARM: Duration = Duration::from_secs(1);

/// This rank of a job.
#[derive(Debug)]
pub struct World {
    pub communicator: Arc<dyn Communicator>,
    /// The communicator of the watchdog, whose calls are not noted in `rank_status`.
    pub(crate) unwatched: Arc<dyn Communicator>,
    pub rank_status: Arc<RankStatus>,
    pub stop: StopFlag,
    pub reporter: Reporter,
    /// True if this thread is the only rank of its process, and so is one of its compute threads.
    /// Ranks that are threads of one process must not be: a rank that waits for the others would
    /// hold work that they wait for.
    pub is_only_rank: bool,
}

impl World {
    /// Returns this rank of `communicator`; root prints to `reporter`.
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

    /// Starts the watchdog: it ends the job, and names the rank, when a rank waits longer than
    /// `timeout` for one that makes no progress. Must be dropped after a last barrier.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a collective fails. Without support for threads there is a warning and no
    /// watchdog.
    pub fn watch(&self, timeout: Duration) -> Result<Option<Watchdog>> {
        let reporter = self.reporter.clone();
        let say = Arc::new(move |alarm: &Alarm| {
            let text = alarm.to_string();
            let reporter = reporter.clone();
            let thread = Builder::new().name("alarm".to_owned());
            let started = wait_for(thread, MOST_OF_AN_ALARM, move || {
                report::alarm(&text);
                reporter.log(&text);
            });
            // Writing the log may hang.
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

    /// Stops the watchdog after a barrier, after which no rank waits for another.
    /// Collective: all ranks.
    pub fn end_watch(&self, watchdog: Option<Watchdog>) -> Result<()> {
        self.communicator.barrier()?;
        drop(watchdog);
        Ok(())
    }

    /// Returns true on the rank that prints and writes for all.
    pub fn is_root(&self) -> bool {
        self.communicator.rank() == ROOT
    }

    /// Sets the compute threads of this process. Returns this rank's device and the number of
    /// threads.
    ///
    /// # Errors
    /// If the backend is not built in or has no driver here, or a variable of the launcher
    /// is not a number.
    pub fn prepare_compute(&self, compute: &ComputeSection) -> Result<(Device, usize)> {
        self.prepare(compute, self.is_only_rank)
    }

    /// As [`prepare_compute`](Self::prepare_compute), for a process whose ranks will be threads.
    pub fn prepare_compute_of_threads(&self, compute: &ComputeSection) -> Result<(Device, usize)> {
        self.prepare(compute, false)
    }

    fn prepare(&self, compute: &ComputeSection, caller_included: bool) -> Result<(Device, usize)> {
        instruction_set(compute.cpu)?;
        let topology = self.communicator.topology();
        let num_threads = compute
            .threads
            .map_or_else(|| share_of_threads(topology), Ok)?;
        let num_threads = set_threads(num_threads, caller_included)?;
        switches::choose_layers()?;
        let device = device(compute.device, topology)?;
        let dtype = match compute.dtype() {
            Activations::F32 => FloatDType::F32,
            Activations::Bf16 => FloatDType::BF16,
            Activations::F16 => FloatDType::F16,
        };
        ensure!(
            device.supports_dtype(dtype),
            "--dtype {}: expected a device that computes with it, got {device:?}; use --dtype f32",
            compute.dtype()
        );
        Ok((device, num_threads))
    }
}

/// A rank's part in a run.
#[derive(Debug)]
pub enum Role {
    /// Trains with the ranks of `communicator`.
    Worker {
        communicator: Arc<dyn Communicator>,
        /// Connects them with ranks that only serve parameters, if there are such.
        server_link: Option<Arc<dyn Communicator>>,
    },
    /// Only serves parameters, over this communicator.
    Server(Arc<dyn Communicator>),
}

impl Role {
    /// Returns the role of this rank.
    /// Collective: all ranks.
    pub fn of(sync: &SyncSection, world: &Arc<dyn Communicator>) -> Result<Self> {
        let num_workers = sync.method.num_workers(world.world_size());
        if num_workers == world.world_size() {
            return Ok(Self::Worker {
                communicator: Arc::clone(world),
                server_link: None,
            });
        }
        let server_link = world.duplicate()?;
        Ok(match world.first_ranks(num_workers)? {
            Some(communicator) => Self::Worker {
                communicator,
                server_link: Some(server_link),
            },
            None => Self::Server(server_link),
        })
    }
}

/// Keeps compiled kernels in `$XDG_CACHE_HOME/cubecl` (else `~/.cache/cubecl`),
/// unless `cubecl.toml` names a folder under `[environment]`. The default of cubecl is the folder
/// `target` of the cargo workspace in which the program happens to run.
///
/// Must be called before the first device is used.
#[cfg(feature = "kernel-cache")]
fn use_kernel_cache() {
    use cubecl::config::cache::CacheConfig;
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
    // Off by default. Compiling takes most of the time of a first run.
    config.compilation.cache = true;
    // Already set if this process has used another device.
    CubeClRuntimeConfig::try_set(config);
}

/// Runs `something` on a thread and waits for it, at most for `limit`.
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
    // The end of the thread closes the channel.
    let _ = waits.recv_timeout(limit);
    Ok(())
}

/// Returns the device of `choice`. `cuda` without an index takes the rank's index on its node.
///
/// # Errors
/// If the backend is not built in.
fn device(choice: DeviceChoice, topology: &Topology) -> Result<Device> {
    let missing = |feature: &str| {
        format!(
            "--device {feature}: this program was built without it. Rebuild with --features {feature}"
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
                    "--device cuda: no NVIDIA driver on node {} (expected /proc/driver/nvidia). Use --device flex",
                    topology.node
                );
            }
            #[cfg(feature = "kernel-cache")]
            use_kernel_cache();
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

/// Returns a rank's share of the CPUs of its node, at most the number that the launcher gave the
/// rank.
///
/// # Errors
/// If a variable of the launcher is not a number.
pub(crate) fn share_of_threads(topology: &Topology) -> Result<usize> {
    // Without binding a rank sees all CPUs of a node, also those of other jobs.
    let allotted =
        Launcher::detect_from_environment()?.and_then(|launcher| launcher.num_processors);
    Ok(topology.num_cpus.min(allotted.unwrap_or(usize::MAX)).max(1))
}

/// Sets the number of compute threads of this process, with the calling thread if
/// `caller_included`, and returns the number in use. A caller outside the pool would hand every
/// operation over to other threads and caches.
///
/// # Errors
/// If the operating system refuses a thread.
fn set_threads(num_threads: usize, caller_included: bool) -> Result<usize> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads);
    let pool = if caller_included {
        pool.use_current_thread()
    } else {
        pool
    };
    // The pool can be built once in a process; ranks that are threads share it.
    match pool.build_global() {
        Ok(()) => Ok(num_threads),
        Err(error) => match error.source() {
            // This process has a pool already.
            None => Ok(rayon::current_num_threads()),
            Some(reason) => bail!(
                "--threads {num_threads}: the operating system refused a compute thread ({reason}). Use fewer, or raise the limit of processes (ulimit -u, pids.max of the cgroup)"
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
    fn an_alarm_is_waited_for_no_longer_than_its_limit() {
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
