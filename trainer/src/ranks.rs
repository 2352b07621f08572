//! Who computes: the communicator this process belongs to, checked against its launcher, and the device it computes on.
//!
//! In: the environment of the launcher, MPI, `--device`. Out: a [`Communicator`] and a burn [`Device`].
//! Invariant: a process whose launcher started several tasks never trains as a world of one.

use std::sync::Arc;

use anyhow::{Result, bail};
use burn::tensor::Device;
use distributed::{Communicator, Launcher, Topology, check_world_size};

#[cfg(feature = "cuda")]
use crate::choices::nvidia_driver_present;
use crate::config::DeviceChoice;

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

/// The device that `choice` means on this rank. `cuda` without an index takes the rank's index on its node.
///
/// # Errors
/// When the backend is not built in.
pub fn device(choice: DeviceChoice, topology: &Topology) -> Result<Device> {
    let missing = |feature: &str| {
        format!("device {feature}: this program was built without it, expected the cargo feature `{feature}`; rebuild with --features {feature}")
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
                bail!("device cuda: no NVIDIA driver on node {}, expected /proc/driver/nvidia; use --device flex", topology.node);
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

/// Sets the number of compute threads of this process; call it before the first tensor. Returns the number in force.
///
/// # Errors
/// When the threads cannot be started.
pub fn set_threads(num_threads: usize) -> Result<usize> {
    // The pool can be built once in a process; thread-ranks of a test share the first one's.
    if rayon::ThreadPoolBuilder::new().num_threads(num_threads).build_global().is_err() {
        return Ok(rayon::current_num_threads());
    }
    Ok(num_threads)
}
