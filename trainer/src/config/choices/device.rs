//! The device of a rank.
//!
//! In: text of the command line or of a TOML file, the features of this program, the driver of the
//! machine. Out: [`DeviceChoice`].

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::{InputKind, ReductionChoice, UpdateKind};

/// A backend and the index of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "super::Written", into = "super::Written")]
pub enum DeviceChoice {
    /// burn's Flex backend on the CPU.
    Flex,
    /// burn's ndarray backend on the CPU.
    Ndarray,
    /// The NVIDIA GPU with this index; `None` means the index `local_rank`.
    Cuda(Option<usize>),
}

impl DeviceChoice {
    /// Returns the backends compiled into this program, the best known first.
    pub fn built_in() -> Vec<&'static str> {
        let known = [
            ("flex", cfg!(feature = "flex")),
            ("ndarray", cfg!(feature = "ndarray")),
            ("cuda", cfg!(feature = "cuda")),
        ];
        known
            .into_iter()
            .filter(|(_, is_built)| *is_built)
            .map(|(name, _)| name)
            .collect()
    }

    /// Returns the default device: a GPU if one is present and built in, otherwise the best CPU
    /// backend.
    pub fn preferred() -> Self {
        if cfg!(feature = "cuda") && nvidia_driver_present() {
            return Self::Cuda(None);
        }
        if cfg!(all(feature = "ndarray", not(feature = "flex"))) {
            Self::Ndarray
        } else {
            Self::Flex
        }
    }

    /// Returns the name of the backend, which is also the name of its cargo feature.
    pub fn backend(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Cuda(_) => "cuda",
        }
    }

    /// Returns the named GPU.
    pub fn gpu(self) -> Option<usize> {
        match self {
            Self::Cuda(index) => index,
            _ => None,
        }
    }

    /// Returns true if burn compiles and launches its own kernels on this device, as on GPUs.
    pub fn launches_kernels(self) -> bool {
        match self {
            Self::Flex | Self::Ndarray => false,
            Self::Cuda(_) => true,
        }
    }

    /// Returns true if burn has numbers of 16 bits on this device.
    pub fn has_16_bits(self) -> bool {
        self != Self::Ndarray
    }

    /// Returns the default of `--input`. A GPU prepares its images, because the upload takes longer
    /// than this work.
    pub fn input(self) -> InputKind {
        match self {
            Self::Flex | Self::Ndarray => InputKind::Host,
            Self::Cuda(_) => InputKind::Device,
        }
    }

    /// Returns the default of `--reduction`. `None`: the ranks choose when they start, as NCCL may
    /// be absent.
    pub fn reduction(self) -> Option<ReductionChoice> {
        match self {
            Self::Flex | Self::Ndarray => Some(ReductionChoice::Hierarchical),
            Self::Cuda(_) => None,
        }
    }

    /// Returns the default of `--update`.
    pub fn update(self) -> UpdateKind {
        match self {
            Self::Flex | Self::Ndarray => UpdateKind::Host,
            Self::Cuda(_) => UpdateKind::Device,
        }
    }
}

/// Returns true if this machine has an NVIDIA driver loaded.
pub fn nvidia_driver_present() -> bool {
    ["/proc/driver/nvidia/version", "/dev/nvidiactl"]
        .iter()
        .any(|path| Path::new(path).exists())
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            other => f.pad(other.backend()),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "flex" => Ok(Self::Flex),
            None if text == "ndarray" => Ok(Self::Ndarray),
            None if text == "cuda" => Ok(Self::Cuda(None)),
            Some(("cuda", index)) if index.parse::<usize>().is_ok() => {
                Ok(Self::Cuda(index.parse().ok()))
            }
            _ => Err(format!(
                "unknown device `{text}`: expected flex, ndarray, cuda or cuda:<index>"
            )),
        }
    }
}
