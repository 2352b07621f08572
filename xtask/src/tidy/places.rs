//! Rules about places: each dangerous or foreign item is allowed in few files.

use super::Finding;
use super::text::{File, words};

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

const ITEMS: [Item; 6] = [
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
pub(super) fn items_are_in_their_places(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for item in &ITEMS {
        let is_place = |place: &&str| {
            let is_anywhere = place.starts_with('/') && file.path.contains(*place);
            is_anywhere || file.path.starts_with(*place) || file.file_name() == *place
        };
        let is_other_crate = item.words == ["burn"] && !file.path.starts_with("datasets/src/");
        if is_other_crate || item.places.iter().any(is_place) {
            continue;
        }
        let may_test = item.is_allowed_in_tests;
        for (index, code) in file.code.iter().enumerate() {
            let is_found = |(before, word, after): (&str, &str, &str)| {
                item.words.contains(&word) && (item.is_meant)(before, after)
            };
            if words(code).any(is_found) && !(may_test && file.is_test(index)) {
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
pub(super) fn unsafe_has_a_reason(file: &File) -> Vec<Finding> {
    const SAFETY: &str = "// SAFETY:";
    let mut findings = Vec::new();
    for (index, code) in file.code.iter().enumerate() {
        let needs_reason = |(_, word, after): (&str, &str, &str)| {
            let after = after.trim_start();
            let is_block = after.is_empty() || after.starts_with('{') || after.starts_with("impl");
            word == "unsafe" && is_block
        };
        if !words(code).any(needs_reason) {
            continue;
        }
        let is_comment = |line: &&String| line.trim_start().starts_with("//");
        // The block may stand in the middle of its statement.
        let is_inside = |line: &&String| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with("//") && !line.ends_with([';', '}', '{'])
        };
        let above = file.lines[..index].iter().rev().skip_while(is_inside);
        let mut reasons = above.take_while(is_comment).chain([&file.lines[index]]);
        if !reasons.any(|line| line.contains(SAFETY)) {
            let message = "`unsafe` without `// SAFETY:` and a reason before it";
            findings.push(Finding::at(index, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    #[test]
    fn items_are_found_outside_their_places() {
        let environment = "//! x\nlet a = std::env::var(\"A\");\nlet b = env::temp_dir();\nlet c = env!(\"C\");\nenv::vars_os();\n";
        let unsafe_code = "//! x\n#![deny(unsafe_code)]\nfn f() { unsafe { g() } }\n";
        let ignored = "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n// #[ignore]\nlet ignore = 1;\n";
        let mpi = "mod mpi;\npub use self::mpi::A;\nuse mpi::B;\nuse mpi;\nlet a = crate::mpi::init();\nmpi::C::new();\n";
        let cudarc = "use cudarc::driver::A;\n";
        let burn =
            "use burn::tensor::Tensor;\n#[cfg(test)]\nmod tests { use burn::tensor::Device; }\n";
        for (path, text, expected) in [
            ("trainer/src/config/mod.rs", environment, &[2, 5][..]),
            ("distributed/src/topology.rs", environment, &[]),
            ("trainer/tests/it/cli.rs", environment, &[]),
            ("trainer/src/world/ranks.rs", unsafe_code, &[3]),
            ("a/tests/b.rs", ignored, &[2]),
            ("distributed/src/lib.rs", mpi, &[3, 4, 6]),
            ("distributed/src/mpi/mod.rs", mpi, &[]),
            ("trainer/src/tools/doctor/gpu.rs", cudarc, &[1]),
            ("distributed/src/nccl/link.rs", cudarc, &[]),
            ("datasets/src/shard.rs", burn, &[1]),
            ("datasets/src/batch/mod.rs", burn, &[]),
            ("datasets/src/batch/raw.rs", burn, &[]),
            ("burn-resnet/src/resnet.rs", burn, &[]),
        ] {
            assert_eq!(
                lines(items_are_in_their_places, path, text),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn an_unsafe_block_needs_its_reason_just_before_it() {
        for (text, expected) in [
            ("//! x\nlet a = unsafe { g() };\n", &[2][..]),
            (
                "// SAFETY: for b.\nlet b = 1;\nlet a = unsafe { g() };\n",
                &[3],
            ),
            (
                "// SAFETY: g has\n// no conditions.\nlet a = unsafe { g() };\n",
                &[],
            ),
            (
                "// SAFETY: no conditions.\nlet a =\n    unsafe { g() };\n",
                &[],
            ),
            ("unsafe { g() } // SAFETY: none needed.\n", &[]),
            ("unsafe impl Send for A {}\n", &[1]),
            ("/// # Safety\nunsafe fn g() {}\n", &[]),
        ] {
            let path = "distributed/src/mpi/mod.rs";
            assert_eq!(lines(unsafe_has_a_reason, path, text), expected, "{text}");
        }
    }
}
