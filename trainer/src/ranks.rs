//! Who computes: the communicator this process belongs to, checked against its launcher, and the device it computes on.
//!
//! In: the environment of the launcher, MPI, `--device`. Out: a [`Communicator`] and a burn [`Device`].
//! Invariant: a process whose launcher started several tasks never trains as a world of one.

use std::sync::Arc;

use anyhow::{Result, bail};
use burn::tensor::Device;
use distributed::{Communicator, Launcher, ROOT, Topology, check_world_size};

#[cfg(feature = "cuda")]
use crate::choices::nvidia_driver_present;
use crate::config::{ComputeConfig, DeviceChoice};
use crate::report::Reporter;
use crate::stop::StopFlag;

/// What a rank is handed at its start.
#[derive(Debug)]
pub struct World {
    /// The ranks.
    pub communicator: Arc<dyn Communicator>,
    /// Raised when somebody wants this rank to stop.
    pub stop: StopFlag,
    /// Where root's words go.
    pub reporter: Reporter,
}

impl World {
    /// This rank's part of the world of `communicator`; root speaks on the console.
    pub fn new(communicator: Arc<dyn Communicator>, stop: StopFlag) -> Self {
        let reporter = Reporter::new(communicator.rank() == ROOT, None);
        Self { communicator, stop, reporter }
    }

    /// Whether this rank acts for all.
    pub fn is_root(&self) -> bool {
        self.communicator.rank() == ROOT
    }

    /// The device that `choice` means on this rank, and the threads it computes with, set for this process.
    ///
    /// # Errors
    /// When the backend is not built in, or has no driver here.
    pub fn prepare_compute(&self, compute: &ComputeConfig) -> Result<(Device, usize)> {
        let topology = self.communicator.topology();
        let num_threads = set_threads(compute.num_threads(topology.local_size));
        Ok((device(compute.device, topology)?, num_threads))
    }
}

/// Joins the world this process was started in.
///
/// # Errors
/// When the launcher's number of tasks is not the world's size, or MPI refuses.
pub fn connect() -> Result<Arc<dyn Communicator>> {
    let launcher = Launcher::detect_from_environment()?;
    #[cfg(feature = "mpi")]
    let communicator: Arc<dyn Communicator> = Arc::new(distributed::MpiCommunicator::init()?);
    #[cfg(not(feature = "mpi"))]
    let communicator: Arc<dyn Communicator> = Arc::new(distributed::SingleCommunicator::new());
    check_world_size(launcher.as_ref(), communicator.world_size(), cfg!(feature = "mpi"))?;
    Ok(communicator)
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
        #[expect(deprecated, reason = "burn deprecates ndarray in favour of flex; it stays here for comparison")]
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
            Ok(Device::cuda(index.unwrap_or(topology.local_rank)))
        }
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => {
            let _ = topology;
            bail!(missing("cuda"))
        }
    }
}

/// Sets the number of compute threads of this process and returns the number in force.
fn set_threads(num_threads: usize) -> usize {
    // The pool can be built once in a process; thread-ranks share the first one's.
    match rayon::ThreadPoolBuilder::new().num_threads(num_threads).build_global() {
        Ok(()) => num_threads,
        Err(_) => rayon::current_num_threads(),
    }
}
