//! The frameworks that do the same job, and the requirements of each.
//!
//! In: a name in a study file. Out: [`Framework`].
//! Invariant: pure data; the names are those that `lab/peers/run.py` takes.

use serde::{Deserialize, Serialize};

/// A framework of a comparison; the name in study files is the variant in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Framework {
    Lockstep,
    PyTorch,
    Horovod,
    TensorFlow,
    MxNet,
    Jax,
}

impl Framework {
    pub(crate) fn is_ours(self) -> bool {
        self == Framework::Lockstep
    }

    /// Module that can be imported in an installed environment.
    pub(crate) fn module(self) -> String {
        match self {
            Framework::PyTorch => "torch".to_owned(),
            Framework::Horovod => "horovod.torch".to_owned(),
            other => records::name(other),
        }
    }

    /// Files below `lab/peers/requirements` to install, in order.
    pub(crate) fn requirements(self) -> Vec<String> {
        match self {
            Framework::Horovod => [Framework::PyTorch, self].map(records::name).to_vec(),
            other => vec![records::name(other)],
        }
    }

    /// Framework that does the job on one rank. Horovod is built for the installed PyTorch, and
    /// both share an environment.
    pub(crate) fn on_one_rank(self) -> Framework {
        match self {
            Framework::Horovod => Framework::PyTorch,
            other => other,
        }
    }

    /// First and last minor version of Python 3 with wheels of the pinned packages.
    pub(crate) fn python(self) -> (u32, u32) {
        match self {
            Framework::MxNet => (9, 9),
            _ => (11, 13),
        }
    }

    /// Reason why the framework cannot do a job at all.
    pub(crate) fn refusal(self, dtype: &str, ranks: usize) -> Option<&'static str> {
        match self {
            Framework::MxNet if dtype != "f32" => {
                Some("its CPU operations have no training path for bf16")
            }
            Framework::Horovod if ranks == 1 => Some("on 1 rank it is PyTorch"),
            _ => None,
        }
    }

    /// Returns whether several ranks find each other only through MPI.
    pub(crate) fn needs_mpi(self) -> bool {
        matches!(self, Framework::Lockstep | Framework::Horovod)
    }

    /// Returns whether the scripts have ImageNet's networks.
    pub(crate) fn has_imagenet(self) -> bool {
        matches!(
            self,
            Framework::Lockstep | Framework::PyTorch | Framework::Horovod
        )
    }

    /// Processes besides the ranks.
    pub(crate) fn roles(self, ranks: usize) -> &'static [&'static str] {
        match self {
            Framework::MxNet if ranks > 1 => &["scheduler", "server"],
            _ => &[],
        }
    }
}
