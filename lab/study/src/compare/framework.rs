//! The frameworks that are compared, and what each needs.
//!
//! In: a name as typed. Out: where it is installed, what is installed, how it is called in the table.
//! Invariant: pure data; what a framework is called here is what `peers/run.py` takes.

use cluster::failure::{Failure, Outcome};

/// Another framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Framework {
    PyTorch,
    Horovod,
    TensorFlow,
    MxNet,
    Jax,
}

pub(super) const ALL: [Framework; 5] = [
    Framework::PyTorch,
    Framework::Horovod,
    Framework::TensorFlow,
    Framework::MxNet,
    Framework::Jax,
];

/// What we are called among them.
pub(super) const OURS: &str = "Lockstep";

impl Framework {
    /// What [`word`](Self::word), [`title`](Self::title), [`module`](Self::module) and [`requirements`](Self::requirements) tell.
    fn names(
        self,
    ) -> (
        &'static str,
        &'static str,
        &'static str,
        &'static [&'static str],
    ) {
        match self {
            Framework::PyTorch => ("pytorch", "PyTorch DDP", "torch", &["pytorch"]),
            Framework::Horovod => (
                "horovod",
                "Horovod",
                "horovod.torch",
                &["pytorch", "horovod"],
            ),
            Framework::TensorFlow => ("tensorflow", "TensorFlow", "tensorflow", &["tensorflow"]),
            Framework::MxNet => ("mxnet", "MXNet", "mxnet", &["mxnet"]),
            Framework::Jax => ("jax", "JAX", "jax", &["jax"]),
        }
    }

    /// The name that is typed.
    pub(super) fn word(self) -> &'static str {
        self.names().0
    }

    /// The name in the table.
    pub(super) fn title(self) -> &'static str {
        self.names().1
    }

    /// What must be importable for an environment to count as installed.
    pub(super) fn module(self) -> &'static str {
        self.names().2
    }

    /// The files below `peers/requirements` that must be installed, in order.
    pub(super) fn requirements(self) -> &'static [&'static str] {
        self.names().3
    }

    /// The virtual environment: Horovod is built for the PyTorch that it meets, so they share one.
    pub(super) fn environment(self) -> &'static str {
        match self {
            Framework::Horovod => Framework::PyTorch.word(),
            other => other.word(),
        }
    }

    /// The first and the last minor version of Python 3 for which the pinned packages have wheels.
    pub(super) fn python(self) -> (u32, u32) {
        match self {
            Framework::MxNet => (9, 9),
            _ => (11, 13),
        }
    }

    /// Why it does not do this job at all.
    pub(super) fn refusal(self, dtype: &str, ranks: usize) -> Option<&'static str> {
        match self {
            Framework::MxNet if dtype != "f32" => {
                Some("its CPU operations have no training path for bf16")
            }
            Framework::Horovod if ranks == 1 => Some("on 1 rank it is PyTorch"),
            _ => None,
        }
    }

    /// Whose row of one rank its speedup is measured by.
    pub(super) fn alone(self) -> Framework {
        if self == Framework::Horovod {
            Framework::PyTorch
        } else {
            self
        }
    }

    /// Whether its ranks find each other only through MPI.
    pub(super) fn needs_mpi(self) -> bool {
        self == Framework::Horovod
    }

    /// Processes beside the ranks.
    pub(super) fn roles(self, ranks: usize) -> &'static [&'static str] {
        if self == Framework::MxNet && ranks > 1 {
            &["scheduler", "server"]
        } else {
            &[]
        }
    }
}

/// Of a framework by its name in the table.
pub(super) fn titled(title: &str) -> Option<Framework> {
    ALL.into_iter().find(|framework| framework.title() == title)
}

/// The frameworks of `--with`, each once, in the order of the table.
pub(super) fn named(list: &str) -> Outcome<Vec<Framework>> {
    let mut found = Vec::new();
    for word in list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        let framework = ALL
            .into_iter()
            .find(|framework| framework.word() == word)
            .ok_or_else(|| {
                let known: Vec<&str> = ALL.iter().map(|framework| framework.word()).collect();
                Failure::Usage(format!(
                    "--with: unknown framework `{word}`, expected some of: {}",
                    known.join(", ")
                ))
            })?;
        found.push(framework);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_in_any_order_and_an_unknown_name_is_refused_with_the_known() {
        assert_eq!(
            named("jax, pytorch,jax").unwrap(),
            [Framework::PyTorch, Framework::Jax]
        );
        assert_eq!(named("").unwrap(), []);
        let refusal = named("pytorch,caffe").unwrap_err();
        assert_eq!(refusal.exit_code(), 2);
        assert!(
            refusal.to_string().contains("`caffe`") && refusal.to_string().contains("mxnet"),
            "{refusal}"
        );
    }

    #[test]
    fn every_framework_has_its_pinned_requirements() {
        for framework in ALL {
            for name in framework.requirements() {
                let text = super::super::scripts::requirements(name);
                let lines = text
                    .lines()
                    .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
                assert!(
                    lines.clone().count() > 0 && lines.clone().all(|line| line.contains("==")),
                    "{name}: {text}"
                );
            }
        }
    }
}
