//! Where a rank computes.
//!
//! In: text of the command line or of a TOML file, the features of this program, the machine's driver. Out: [`DeviceChoice`].

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::{InputKind, UpdateKind};

/// The backend that computes, and on which of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// burn's Flex backend on the CPU.
    Flex,
    /// burn's ndarray backend on the CPU.
    Ndarray,
    /// An NVIDIA GPU: the one with this index, or without one that of the rank's `local_rank`.
    Cuda(Option<usize>),
}

impl DeviceChoice {
    /// The backends compiled into this program, best known first.
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

    /// What to compute on if nobody says: a GPU if there is one and it is built in, else the best processor backend.
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

    /// The name of the backend, which is also that of its cargo feature.
    pub fn backend(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Cuda(_) => "cuda",
        }
    }

    /// Whether burn computes on it by kernels of its own making, as on GPUs.
    pub fn launches_kernels(self) -> bool {
        match self {
            Self::Flex | Self::Ndarray => false,
            Self::Cuda(_) => true,
        }
    }

    /// Who makes its images if nobody says: a GPU itself, since the way to it is longer than the work.
    pub fn input(self) -> InputKind {
        match self {
            Self::Flex | Self::Ndarray => InputKind::Host,
            Self::Cuda(_) => InputKind::Device,
        }
    }

    /// Where a rank that trains alone is updated if nobody says.
    pub fn update(self) -> UpdateKind {
        match self {
            Self::Flex | Self::Ndarray => UpdateKind::Host,
            Self::Cuda(_) => UpdateKind::Device,
        }
    }
}

/// Whether this machine has an NVIDIA driver loaded.
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
