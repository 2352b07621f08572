//! The usual settings of the other frameworks, of which each competes with its best.
//!
//! In: a framework, ranks, threads. Out: what can be chosen, and how a choice reaches the processes.
//! Invariant: the first option is the framework's own default. An allocator is preloaded, and so must be known before a process
//! starts; the scripts in `peers/` understand all other options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::framework::Framework;

/// A name with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) name: &'static str,
    pub(super) options: &'static [&'static str],
    /// Matters only among several ranks.
    pub(super) is_communication: bool,
}

const ALLOCATOR: &str = "allocator";

/// Where Debian's and Red Hat's packages put libraries.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

const fn choice(name: &'static str, options: &'static [&'static str]) -> Choice {
    Choice {
        name,
        options,
        is_communication: false,
    }
}

const fn communication(name: &'static str, options: &'static [&'static str]) -> Choice {
    Choice {
        name,
        options,
        is_communication: true,
    }
}

/// What can be chosen, in the order in which it is tried.
pub(super) fn choices(framework: Framework, ranks: usize, threads: usize) -> Vec<Choice> {
    let mut choices = match framework {
        Framework::PyTorch => vec![
            choice("layout", &["channels-last", "contiguous"]),
            choice("mode", &["eager", "compile"]),
            communication("bucket-mib", &["25", "5", "1", "0.25"]),
            communication("graph", &["dynamic", "static"]),
        ],
        Framework::Horovod => vec![
            communication("fusion-mib", &["default", "0", "1"]),
            communication("cycle-ms", &["default", "0.1", "5"]),
        ],
        Framework::TensorFlow => vec![
            choice("xla", &["off", "auto"]),
            choice("onednn", &["on", "off"]),
        ],
        Framework::MxNet => Vec::new(),
        Framework::Jax => vec![choice("fast-math", &["off", "on"])],
    };
    choices.push(choice(
        ALLOCATOR,
        &["glibc", "glibc-keep", "jemalloc", "tcmalloc"],
    ));
    if threads > 1 {
        choices.push(choice("affinity", &["free", "bound"]));
    }
    choices.retain(|choice| ranks > 1 || !choice.is_communication);
    choices
}

/// What was chosen other than defaults, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Setting(BTreeMap<String, String>);

impl Setting {
    /// The same with another option of one choice.
    pub(super) fn with(&self, choice: &Choice, option: &str) -> Self {
        let mut chosen = self.0.clone();
        match choice.options.first() {
            Some(default) if *default == option => chosen.remove(choice.name),
            _ => chosen.insert(choice.name.to_owned(), option.to_owned()),
        };
        Setting(chosen)
    }

    /// Only what these choices know.
    pub(super) fn among(&self, choices: &[Choice]) -> Self {
        let is_known = |name: &String| choices.iter().any(|choice| choice.name == name);
        Setting(
            self.0
                .iter()
                .filter(|(name, _)| is_known(name))
                .map(|(name, option)| (name.clone(), option.clone()))
                .collect(),
        )
    }

    /// For a reader: `allocator jemalloc, mode compile`, or `defaults`.
    pub(super) fn shown(&self) -> String {
        if self.0.is_empty() {
            return "defaults".to_owned();
        }
        self.0
            .iter()
            .map(|(name, option)| format!("{name} {option}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The flags of `peers/run.py`.
    pub(super) fn words(&self) -> Vec<String> {
        let told = self.0.iter().filter(|(name, _)| *name != ALLOCATOR);
        told.flat_map(|(name, option)| ["--setting".to_owned(), format!("{name}={option}")])
            .collect()
    }

    /// The environment in which a process must start.
    pub(super) fn environment(&self) -> Result<Vec<(String, String)>, String> {
        let option = self.0.get(ALLOCATOR).map_or("glibc", String::as_str);
        let keep = [
            ("MALLOC_MMAP_MAX_", "0"),
            ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
        ];
        let decay = "background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1";
        let (library, package, variables) = match option {
            "glibc" => return Ok(Vec::new()),
            "glibc-keep" => {
                return Ok(keep
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .to_vec());
            }
            "jemalloc" => ("libjemalloc.so.2", "libjemalloc2", ("MALLOC_CONF", decay)),
            _ => (
                "libtcmalloc_minimal.so.4",
                "libtcmalloc-minimal4",
                ("TCMALLOC_RELEASE_RATE", "0"),
            ),
        };
        let file = library_file(library).ok_or_else(|| {
            format!("{library} is not installed: on Debian it is in the package {package}")
        })?;
        let pair = |name: &str, value: String| (name.to_owned(), value);
        Ok(vec![
            pair("LD_PRELOAD", file.display().to_string()),
            pair(variables.0, variables.1.to_owned()),
        ])
    }
}

impl From<BTreeMap<String, String>> for Setting {
    fn from(chosen: BTreeMap<String, String>) -> Self {
        Setting(chosen)
    }
}

impl From<Setting> for BTreeMap<String, String> {
    fn from(setting: Setting) -> Self {
        setting.0
    }
}

fn library_file(name: &str) -> Option<PathBuf> {
    LIBRARIES
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::framework::ALL;

    #[test]
    fn buckets_matter_among_ranks_and_affinity_among_threads() {
        let names = |ranks, threads| {
            choices(Framework::PyTorch, ranks, threads)
                .iter()
                .map(|choice| choice.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(1, 1), ["layout", "mode", "allocator"]);
        assert_eq!(
            names(2, 2),
            [
                "layout",
                "mode",
                "bucket-mib",
                "graph",
                "allocator",
                "affinity"
            ]
        );
    }

    #[test]
    fn a_default_is_not_named_and_an_unknown_choice_is_left_behind() {
        let all = choices(Framework::PyTorch, 2, 1);
        let setting = Setting::default()
            .with(&all[1], "compile")
            .with(&all[2], "1");
        assert_eq!(setting.shown(), "bucket-mib 1, mode compile");
        assert_eq!(
            setting.words(),
            ["--setting", "bucket-mib=1", "--setting", "mode=compile"]
        );
        assert_eq!(
            setting.with(&all[2], "25").with(&all[1], "eager").shown(),
            "defaults"
        );
        assert_eq!(
            setting.among(&choices(Framework::PyTorch, 1, 1)).shown(),
            "mode compile"
        );
    }

    #[test]
    fn the_allocator_is_an_environment_and_no_flag() {
        let all = choices(Framework::Jax, 1, 1);
        let keep = Setting::default().with(&all[1], "glibc-keep");
        assert_eq!(keep.words(), Vec::<String>::new());
        assert_eq!(
            keep.environment().unwrap()[0],
            ("MALLOC_MMAP_MAX_".to_owned(), "0".to_owned())
        );
        match Setting::default().with(&all[1], "jemalloc").environment() {
            Ok(variables) => assert!(variables[0].1.ends_with("libjemalloc.so.2")),
            Err(reason) => assert!(reason.contains("libjemalloc2"), "{reason}"),
        }
    }

    #[test]
    fn every_option_but_the_allocators_is_understood_by_the_scripts() {
        let scripts = super::super::scripts::all().concat();
        for framework in ALL {
            for choice in choices(framework, 2, 2)
                .iter()
                .filter(|choice| choice.name != ALLOCATOR)
            {
                assert!(
                    scripts.contains(&format!("\"{}\"", choice.name)),
                    "{}",
                    choice.name
                );
            }
        }
    }
}
