//! Rules about places: each dangerous or foreign item is allowed in few files.

use super::Finding;
use super::source::{Source, words};

/// An item that is allowed in few places.
struct Item {
    words: &'static [&'static str],
    /// Returns true if the code before and after a word makes it this item.
    is_meant: fn(&str, &str) -> bool,
    /// Starts of paths, names of files, or folders anywhere, which begin with `/`.
    places: &'static [&'static str],
    is_allowed_in_tests: bool,
    message: &'static str,
}

const ITEMS: [Item; 7] = [
    Item {
        words: &["println", "eprintln", "print", "eprint"],
        is_meant: |_, after| after.starts_with('!'),
        places: &[
            "trainer/src/measure/report.rs",
            "trainer/src/measure/report/",
            "cluster/",
            "lab/study/",
            "xtask/",
            "/examples/",
            "/benches/",
            "main.rs",
            "build.rs",
        ],
        is_allowed_in_tests: true,
        message: "print only in report.rs and main.rs: return the text to the caller",
    },
    Item {
        words: &["var", "var_os", "vars", "vars_os"],
        is_meant: |before, _| before.ends_with("env::"),
        places: &[
            "trainer/src/config/cli/",
            "cluster/",
            "lab/study/",
            "xtask/",
            "topology.rs",
            "build.rs",
        ],
        is_allowed_in_tests: true,
        message: "read the environment only in topology.rs and trainer/src/config/cli: \
                  take the value as an argument",
    },
    Item {
        words: &["unsafe"],
        is_meant: |_, _| true,
        places: &[
            "distributed/src/mpi/",
            "distributed/src/nccl/",
            "gpu/src/capture.rs",
            "kernels/",
        ],
        is_allowed_in_tests: false,
        message: "`unsafe` only in distributed/src/mpi, distributed/src/nccl, gpu/src/capture.rs \
                  and kernels: write safe code",
    },
    Item {
        words: &["ignore"],
        is_meant: |before, _| before.trim_end().ends_with("#["),
        places: &[],
        is_allowed_in_tests: false,
        message: "`#[ignore]`: make the test fast, or remove it",
    },
    Item {
        words: &["mpi"],
        is_meant: is_crate,
        places: &["distributed/src/mpi/"],
        is_allowed_in_tests: false,
        message: "the crate mpi only in distributed/src/mpi: use `Communicator`",
    },
    Item {
        words: &["cudarc"],
        is_meant: is_crate,
        places: &["distributed/src/nccl/"],
        is_allowed_in_tests: false,
        message: "the crate cudarc only in distributed/src/nccl: use `NcclReduction`",
    },
    // Of `datasets`, only the module `batch` imports burn.
    Item {
        words: &["burn"],
        is_meant: is_crate,
        places: &["datasets/src/batch/"],
        is_allowed_in_tests: true,
        message: "burn only in datasets/src/batch: tensors begin there",
    },
];

/// Finds items outside of their places.
pub(super) fn items_are_in_their_places(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for item in &ITEMS {
        let is_place = |place: &&str| {
            let is_anywhere = place.starts_with('/') && source.path.contains(*place);
            is_anywhere || source.path.starts_with(*place) || source.file_name() == *place
        };
        let is_other_crate = item.words == ["burn"] && !source.path.starts_with("datasets/src/");
        if is_other_crate || item.places.iter().any(is_place) {
            continue;
        }
        let may_test = item.is_allowed_in_tests;
        for (index, code) in source.code.iter().enumerate() {
            let is_found = |(before, word, after): (&str, &str, &str)| {
                item.words.contains(&word) && (item.is_meant)(before, after)
            };
            if words(code).any(is_found) && !(may_test && source.is_test(index)) {
                findings.push(Finding::at(index, item.message.to_owned()));
            }
        }
    }
    findings
}

/// Returns true if the word between these begins a path, and so may be a crate.
fn is_crate(before: &str, after: &str) -> bool {
    let is_first = !before.ends_with("::") && !before.ends_with('.');
    let is_use = before.trim_end().ends_with("use");
    let is_imported = is_use && (after.starts_with(';') || after.starts_with(" as "));
    is_first && (after.starts_with("::") || is_imported)
}

/// Finds unsafe blocks without a reason before them.
pub(super) fn unsafe_has_a_reason(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, code) in source.code.iter().enumerate() {
        let needs_reason = |(_, word, after): (&str, &str, &str)| {
            let after = after.trim_start();
            let is_block = after.is_empty() || after.starts_with('{') || after.starts_with("impl");
            word == "unsafe" && is_block
        };
        if words(code).any(needs_reason) && !has_safety_comment(source, index) {
            let message = "`unsafe` without `// SAFETY:` and a reason before it";
            findings.push(Finding::at(index, message.to_owned()));
        }
    }
    findings
}

fn has_safety_comment(source: &Source, index: usize) -> bool {
    const SAFETY: &str = "// SAFETY:";
    if source.lines[index].contains(SAFETY) {
        return true;
    }
    let is_comment = |line: &&String| line.trim_start().starts_with("//");
    // The block may stand in the middle of its statement.
    let is_inside = |line: &&String| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !line.ends_with([';', '}', '{'])
    };
    let above = source.lines[..index].iter().rev().skip_while(is_inside);
    above
        .take_while(is_comment)
        .any(|line| line.contains(SAFETY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        let findings = rule(&Source::new(path, text));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn printing_is_found_outside_its_places() {
        let rule = items_are_in_their_places;
        let text = "//! x\nfn f() { println!(\"a\"); }\n// println!\n#[cfg(test)]\nmod tests { fn g() { eprintln!(); } }\n";
        assert_eq!(lines(rule, "datasets/src/shard.rs", text), [2]);
        assert!(lines(rule, "trainer/src/measure/report.rs", text).is_empty());
        assert!(lines(rule, "trainer/src/main.rs", text).is_empty());
        assert!(lines(rule, "distributed/tests/conformance.rs", text).is_empty());
    }

    #[test]
    fn reading_the_environment_is_found_outside_its_places() {
        let rule = items_are_in_their_places;
        let text = "//! x\nlet a = std::env::var(\"A\");\nlet b = env::temp_dir();\nlet c = env!(\"C\");\nenv::vars_os();\n";
        assert_eq!(lines(rule, "trainer/src/config/mod.rs", text), [2, 5]);
        assert!(lines(rule, "distributed/src/topology.rs", text).is_empty());
        assert!(lines(rule, "trainer/tests/it/cli.rs", text).is_empty());
    }

    #[test]
    fn unsafe_is_found_outside_its_places() {
        let text = "//! x\n#![deny(unsafe_code)]\nfn f() { unsafe { g() } }\n";
        assert_eq!(
            lines(
                items_are_in_their_places,
                "trainer/src/world/ranks.rs",
                text
            ),
            [3]
        );
    }

    #[test]
    fn an_unsafe_block_needs_its_reason_just_before_it() {
        let rule = |text| lines(unsafe_has_a_reason, "distributed/src/mpi/mod.rs", text);
        assert_eq!(rule("//! x\nlet a = unsafe { g() };\n"), [2]);
        assert_eq!(
            rule("// SAFETY: for b.\nlet b = 1;\nlet a = unsafe { g() };\n"),
            [3]
        );
        assert!(rule("// SAFETY: g has\n// no conditions.\nlet a = unsafe { g() };\n").is_empty());
        assert!(rule("// SAFETY: no conditions.\nlet a =\n    unsafe { g() };\n").is_empty());
        assert!(rule("unsafe { g() } // SAFETY: none needed.\n").is_empty());
        assert_eq!(rule("unsafe impl Send for A {}\n"), [1]);
        assert!(rule("/// # Safety\nunsafe fn g() {}\n").is_empty());
    }

    #[test]
    fn an_ignored_test_is_found() {
        assert_eq!(
            lines(
                items_are_in_their_places,
                "a/tests/b.rs",
                "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n"
            ),
            [2]
        );
        assert!(
            lines(
                items_are_in_their_places,
                "a/tests/b.rs",
                "// #[ignore]\nlet ignore = 1;\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn crates_with_one_file_are_found_elsewhere() {
        let rule = items_are_in_their_places;
        let text = "mod mpi;\npub use self::mpi::A;\nuse mpi::B;\nuse mpi;\nlet a = crate::mpi::init();\nmpi::C::new();\n";
        assert_eq!(lines(rule, "distributed/src/lib.rs", text), [3, 4, 6]);
        assert!(lines(rule, "distributed/src/mpi/mod.rs", text).is_empty());
        assert_eq!(
            lines(
                rule,
                "trainer/src/tools/doctor/gpu.rs",
                "use cudarc::driver::A;\n"
            ),
            [1]
        );
        assert!(
            lines(
                rule,
                "distributed/src/nccl/link.rs",
                "use cudarc::driver::A;\n"
            )
            .is_empty()
        );
        let burn =
            "use burn::tensor::Tensor;\n#[cfg(test)]\nmod tests { use burn::tensor::Device; }\n";
        assert_eq!(lines(rule, "datasets/src/shard.rs", burn), [1]);
        assert!(lines(rule, "datasets/src/batch/mod.rs", burn).is_empty());
        assert!(lines(rule, "datasets/src/batch/raw.rs", burn).is_empty());
        assert!(lines(rule, "burn-resnet/src/resnet.rs", burn).is_empty());
    }
}
