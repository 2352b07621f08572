//! Rules about what may stand where: one place for each danger.

use super::Finding;
use super::source::{Source, words};

/// The only files that may name the crate mpi.
const MPI_FOLDER: &str = "distributed/src/mpi/";

/// The only files that may name the crate cudarc.
const NCCL_FOLDER: &str = "distributed/src/nccl/";
const CAPTURE: &str = "gpu/src/capture.rs";

/// Crates that start other programs: what these find in the environment is theirs to read, and what is going on theirs to print.
const TOOLS: [&str; 3] = ["cluster", "study", "xtask"];

/// Printing belongs to the report, to programs and to tests.
pub(super) fn prints_only_where_printing_is_the_job(source: &Source) -> Vec<Finding> {
    const PRINTING: [&str; 4] = ["println", "eprintln", "print", "eprint"];
    let may_print = source.path == "trainer/src/measure/report.rs"
        || source.path.starts_with("trainer/src/measure/report/")
        || ["main.rs", "build.rs"].contains(&source.file_name())
        || source.path.contains("/examples/")
        || source.path.contains("/benches/")
        || TOOLS.contains(&source.member());
    if may_print {
        return Vec::new();
    }
    found(source, |source, index, (_, word, after)| {
        (PRINTING.contains(&word) && after.starts_with('!') && !source.is_test(index)).then(|| {
            format!("`{word}!` outside report.rs and main.rs: return the text to who reports it")
        })
    })
}

/// The environment is read where the launcher and the command line are.
pub(super) fn reads_the_environment_in_one_place(source: &Source) -> Vec<Finding> {
    let may_read = ["topology.rs", "build.rs"].contains(&source.file_name())
        || source.path.starts_with("trainer/src/config/cli/")
        || TOOLS.contains(&source.member());
    if may_read {
        return Vec::new();
    }
    found(source, |source, index, (before, word, _)| {
        let reads =
            ["var", "var_os", "vars", "vars_os"].contains(&word) && before.ends_with("env::");
        (reads && !source.is_test(index)).then(|| {
            format!("`env::{word}` outside topology.rs and trainer/src/config/cli: take the value as an argument")
        })
    })
}

/// Unsafe code stays in its files, and each block says why it is sound.
pub(super) fn unsafe_stays_where_it_belongs(source: &Source) -> Vec<Finding> {
    let may = [MPI_FOLDER, NCCL_FOLDER, CAPTURE]
        .iter()
        .any(|place| source.path.starts_with(place))
        || source.member() == "kernels";
    found(source, |source, index, (_, word, after)| {
        if word != "unsafe" {
            return None;
        }
        if !may {
            return Some(
                "`unsafe` outside distributed/src/mpi, distributed/src/nccl, gpu/src/capture.rs and kernels: express it in safe code"
                    .to_owned(),
            );
        }
        let after = after.trim_start();
        let needs_reason = after.is_empty() || after.starts_with('{') || after.starts_with("impl");
        (needs_reason && !has_safety_comment(source, index))
            .then(|| "`unsafe` without `// SAFETY:` before it: say why it is sound".to_owned())
    })
}

/// Whether the comment before the statement of this line, or on it, begins a reason.
fn has_safety_comment(source: &Source, index: usize) -> bool {
    const SAFETY: &str = "// SAFETY:";
    if source.lines[index].contains(SAFETY) {
        return true;
    }
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let mut above = source.lines[..index].iter().rev().peekable();
    // The block may stand in the middle of its statement: go up to the statement's first line.
    while let Some(line) = above.peek()
        && !is_comment(line)
        && !line.trim().is_empty()
        && !line.trim_end().ends_with([';', '}'])
        && !line.trim_end().ends_with('{')
    {
        above.next();
    }
    above
        .take_while(|line| is_comment(line))
        .any(|line| line.contains(SAFETY))
}

/// A test that does not run is no test.
pub(super) fn ignores_no_test(source: &Source) -> Vec<Finding> {
    found(source, |_, _, (before, word, _)| {
        (word == "ignore" && before.trim_end().ends_with("#["))
            .then(|| "`#[ignore]`: make the test fast enough to run, or remove it".to_owned())
    })
}

/// The crates mpi and cudarc are each known to one folder; in `datasets` so is burn.
pub(super) fn names_a_crate_only_in_its_file(source: &Source) -> Vec<Finding> {
    found(source, |source, index, (before, word, after)| {
        if !is_path_start(before, after) {
            return None;
        }
        let is_of_datasets = source.path.starts_with("datasets/src/") && !source.is_test(index);
        let is_of_batch = source.path.starts_with("datasets/src/batch/");
        match word {
            "mpi" if !source.path.starts_with(MPI_FOLDER) => {
                Some("the crate mpi is named outside distributed/src/mpi: go through `Communicator`; the own module is `self::mpi`".to_owned())
            }
            "cudarc" if !source.path.starts_with(NCCL_FOLDER) => {
                Some("the crate cudarc is named outside distributed/src/nccl: go through `NcclReduction`".to_owned())
            }
            "burn" if is_of_datasets && !is_of_batch => {
                Some("burn is named outside datasets/src/batch: tensors begin there".to_owned())
            }
            _ => None,
        }
    })
}

/// Whether the word between these begins a path, and so may name a crate.
fn is_path_start(before: &str, after: &str) -> bool {
    let is_first = !before.ends_with("::") && !before.ends_with('.');
    let is_imported_whole =
        before.trim_end().ends_with("use") && (after.starts_with(';') || after.starts_with(" as "));
    is_first && (after.starts_with("::") || is_imported_whole)
}

/// A line's word with what stands before and after it.
pub(super) type Word<'a> = (&'a str, &'a str, &'a str);

/// Looks at every word of the code.
pub(super) fn found(
    source: &Source,
    check: impl Fn(&Source, usize, Word<'_>) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, code) in source.code.iter().enumerate() {
        for word in words(code) {
            findings.extend(check(source, index, word).map(|message| Finding {
                line: index + 1,
                message,
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::new(path, text))
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn printing_is_found_outside_its_places() {
        let rule = prints_only_where_printing_is_the_job;
        let text = "//! x\nfn f() { println!(\"a\"); }\n// println!\n#[cfg(test)]\nmod tests { fn g() { eprintln!(); } }\n";
        assert_eq!(lines(rule, "datasets/src/shard.rs", text), [2]);
        assert!(lines(rule, "trainer/src/measure/report.rs", text).is_empty());
        assert!(lines(rule, "trainer/src/main.rs", text).is_empty());
        assert!(lines(rule, "distributed/tests/conformance.rs", text).is_empty());
    }

    #[test]
    fn reading_the_environment_is_found_outside_its_places() {
        let rule = reads_the_environment_in_one_place;
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
                unsafe_stays_where_it_belongs,
                "trainer/src/world/ranks.rs",
                text
            ),
            [3]
        );
    }

    #[test]
    fn an_unsafe_block_needs_its_reason_just_before_it() {
        let rule = |text| {
            lines(
                unsafe_stays_where_it_belongs,
                "distributed/src/mpi/mod.rs",
                text,
            )
        };
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
                ignores_no_test,
                "a/tests/b.rs",
                "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n"
            ),
            [2]
        );
        assert!(
            lines(
                ignores_no_test,
                "a/tests/b.rs",
                "// #[ignore]\nlet ignore = 1;\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn crates_with_one_file_are_found_elsewhere() {
        let rule = names_a_crate_only_in_its_file;
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
