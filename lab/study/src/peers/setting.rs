//! The usual settings of other frameworks, of which each competes with its best.
//!
//! In: a framework, ranks, threads. Out: the options to try; flags and environment of a
//! [`Setting`].
//! Invariant: the first option is the framework's own default. An allocator is preloaded, so it is
//! an environment variable; the scripts in `lab/peers/` understand all other options.

use std::collections::BTreeMap;
use std::path::Path;

use super::Framework;
use cluster::failure::{Outcome, failed};

/// Options of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(super) name: &'static str,
    pub(super) options: &'static [&'static str],
}

const ALLOCATOR: &str = "allocator";

/// Folders of libraries in Debian's and Red Hat's packages.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

const fn choice(name: &'static str, options: &'static [&'static str]) -> Choice {
    Choice { name, options }
}

/// Returns the options that matter only among several ranks, in the order in which they are tried.
pub(super) fn of_communication(framework: Framework) -> Vec<Choice> {
    match framework {
        Framework::PyTorch => vec![
            choice("bucket-mib", &["25", "5", "1", "0.25"]),
            choice("graph", &["dynamic", "static"]),
        ],
        Framework::Horovod => vec![
            choice("fusion-mib", &["default", "0", "1"]),
            choice("cycle-ms", &["default", "0.1", "5"]),
        ],
        _ => Vec::new(),
    }
}

/// Returns the options that matter on one rank, in the order in which they are tried.
pub(super) fn of_one_rank(framework: Framework, threads: usize) -> Vec<Choice> {
    let mut choices = match framework {
        Framework::PyTorch => vec![
            choice("layout", &["channels-last", "contiguous"]),
            choice("mode", &["eager", "compile"]),
        ],
        Framework::TensorFlow => vec![
            choice("xla", &["off", "auto"]),
            choice("onednn", &["on", "off"]),
        ],
        Framework::Jax => vec![choice("fast-math", &["off", "on"])],
        _ => Vec::new(),
    };
    let allocators = &["glibc", "glibc-keep", "jemalloc", "tcmalloc"];
    choices.push(choice(ALLOCATOR, allocators));
    if threads > 1 {
        choices.push(choice("affinity", &["free", "bound"]));
    }
    choices
}

/// Options other than the defaults, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Setting(pub(crate) BTreeMap<String, String>);

impl Setting {
    /// Returns the setting with another option of one choice.
    pub(super) fn with(&self, choice: &Choice, option: &str) -> Self {
        let mut chosen = self.0.clone();
        match choice.options.first() {
            Some(default) if *default == option => chosen.remove(choice.name),
            _ => chosen.insert(choice.name.to_owned(), option.to_owned()),
        };
        Setting(chosen)
    }

    /// Returns the setting without options of other choices.
    pub(super) fn among(&self, choices: &[Choice]) -> Self {
        let mut chosen = self.0.clone();
        chosen.retain(|name, _| choices.iter().any(|choice| choice.name == name));
        Setting(chosen)
    }

    /// Returns the flags of `lab/peers/run.py`.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (name, option) in self.0.iter().filter(|(name, _)| *name != ALLOCATOR) {
            words.extend(["--setting".to_owned(), format!("{name}={option}")]);
        }
        words
    }

    /// Returns the variables with which a process must start.
    ///
    /// # Errors
    /// The library of an allocator is not installed.
    pub(crate) fn environment(&self) -> Outcome<Vec<(&'static str, String)>> {
        let (library, package, variable) = match self.0.get(ALLOCATOR).map(String::as_str) {
            None => return Ok(Vec::new()),
            Some("glibc-keep") => {
                return Ok(vec![
                    ("MALLOC_MMAP_MAX_", "0".to_owned()),
                    ("MALLOC_TRIM_THRESHOLD_", "1099511627776".to_owned()),
                ]);
            }
            Some("jemalloc") => (
                "libjemalloc.so.2",
                "libjemalloc2",
                (
                    "MALLOC_CONF",
                    "background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1",
                ),
            ),
            Some(_) => (
                "libtcmalloc_minimal.so.4",
                "libtcmalloc-minimal4",
                ("TCMALLOC_RELEASE_RATE", "0"),
            ),
        };
        let file = LIBRARIES
            .iter()
            .map(|folder| Path::new(folder).join(library))
            .find(|file| file.exists());
        let file = file.ok_or_else(|| {
            failed!("{library} is not installed. On Debian, install the package {package}.")
        })?;
        Ok(vec![
            ("LD_PRELOAD", file.display().to_string()),
            (variable.0, variable.1.to_owned()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_not_named_and_an_unknown_choice_is_left_out() {
        let one_rank = of_one_rank(Framework::PyTorch, 1);
        let several = of_communication(Framework::PyTorch);
        let setting = Setting::default()
            .with(&one_rank[1], "compile")
            .with(&several[0], "1");
        let words = ["--setting", "bucket-mib=1", "--setting", "mode=compile"];
        assert_eq!(setting.words(), words);
        let default = setting.with(&several[0], "25").with(&one_rank[1], "eager");
        assert_eq!(default, Setting::default());
        assert_eq!(setting.among(&one_rank).words(), words[2..]);
        let affinity = of_one_rank(Framework::PyTorch, 2).pop().unwrap();
        assert_eq!(affinity.name, "affinity", "matters among threads");
    }

    #[test]
    fn the_allocator_is_an_environment_and_no_flag() {
        let allocator = of_one_rank(Framework::Jax, 1).pop().unwrap();
        let keep = Setting::default().with(&allocator, "glibc-keep");
        assert_eq!(keep.words(), Vec::<String>::new());
        assert_eq!(keep.environment().unwrap()[0].0, "MALLOC_MMAP_MAX_");
        match Setting::default()
            .with(&allocator, "jemalloc")
            .environment()
        {
            Ok(variables) => assert!(variables[0].1.ends_with("libjemalloc.so.2")),
            Err(reason) => assert!(reason.to_string().contains("libjemalloc2"), "{reason}"),
        }
    }

    #[test]
    fn the_scripts_understand_every_option_but_the_allocators() {
        let scripts = crate::peers::scripts::all().concat();
        use Framework::{Horovod, Jax, MxNet, PyTorch, TensorFlow};
        for framework in [PyTorch, Horovod, TensorFlow, MxNet, Jax] {
            let choices = [of_one_rank(framework, 2), of_communication(framework)].concat();
            for choice in choices.iter().filter(|choice| choice.name != ALLOCATOR) {
                let quoted = format!("\"{}\"", choice.name);
                assert!(scripts.contains(&quoted), "{}", choice.name);
            }
        }
    }
}
