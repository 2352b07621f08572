//! Who may import whom: the map of ARCHITECTURE.md as a table.

use super::Finding;
use super::places::{found, is_path_start};
use super::source::Source;

/// A member and the crates it must not know, by their names in manifests.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("burn-resnet", &["datasets", "distributed", "simulate", "trainer", "mpi"]),
    ("datasets", &["burn-resnet", "distributed", "layers", "simulate", "trainer", "mpi"]),
    ("distributed", &["burn-resnet", "datasets", "layers", "simulate", "trainer"]),
    ("kernels", &["burn", "burn-resnet", "datasets", "distributed", "layers", "simulate", "trainer", "mpi"]),
    ("layers", &["burn-resnet", "datasets", "distributed", "simulate", "trainer", "mpi"]),
    ("simulate", &["burn", "burn-resnet", "datasets", "kernels", "layers", "trainer", "mpi"]),
    (
        "jobs",
        &[
            "burn",
            "burn-resnet",
            "datasets",
            "distributed",
            "kernels",
            "layers",
            "report",
            "simulate",
            "trainer",
            "mpi",
        ],
    ),
    (
        "records",
        &[
            "burn",
            "burn-resnet",
            "datasets",
            "distributed",
            "jobs",
            "kernels",
            "layers",
            "report",
            "simulate",
            "trainer",
            "mpi",
        ],
    ),
    (
        "report",
        &["burn", "burn-resnet", "datasets", "distributed", "jobs", "kernels", "layers", "simulate", "trainer", "mpi"],
    ),
    ("trainer", &["mpi"]),
];

fn forbidden(member: &str) -> &'static [&'static str] {
    FORBIDDEN.iter().find(|(name, _)| *name == member).map_or(&[], |(_, forbidden)| forbidden)
}

/// A source file names no crate that its own crate must not know.
pub(super) fn imports_follow_the_map(source: &Source) -> Vec<Finding> {
    let member = source.member();
    let names: Vec<String> = forbidden(member)
        .iter()
        // Its own rule speaks of the crate mpi, which one folder may name.
        .filter(|name| **name != "mpi")
        .map(|name| name.replace('-', "_"))
        .collect();
    found(source, |_, _, (before, word, after)| {
        (is_path_start(before, after) && names.iter().any(|name| name == word))
            .then(|| format!("{member} names the crate {word}: expected none of {}", names.join(", ")))
    })
}

/// What xtask may depend on: what reads its command line and the formats it meets, and what starts processes, all built in seconds.
const XTASK_MAY_KNOW: [&str; 4] = ["clap", "jobs", "serde_json", "toml"];

/// A manifest depends on no crate that its crate must not know; xtask depends on next to nothing.
pub(super) fn manifest_follows_the_map(path: &str, text: &str) -> Vec<Finding> {
    let member = path.split('/').next().unwrap_or_default();
    let mut findings = Vec::new();
    let mut is_dependencies = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let name = if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            is_dependencies = section.ends_with("dependencies");
            // A table of its own, as in `[dependencies.burn]`.
            section.split_once("dependencies.").map(|(_, name)| name)
        } else if is_dependencies {
            line.split(['.', '=', ' ']).next().filter(|name| !name.is_empty() && !name.starts_with('#'))
        } else {
            None
        };
        let Some(name) = name.filter(|_| path != "Cargo.toml") else { continue };
        if forbidden(member).contains(&name) {
            findings.push(Finding { line: index + 1, message: format!("{member} must not depend on {name}") });
        } else if member == "xtask" && !XTASK_MAY_KNOW.contains(&name) {
            let known = XTASK_MAY_KNOW.join(", ");
            let message = format!("xtask depends on {name}: expected only {known}, so that it builds in seconds");
            findings.push(Finding { line: index + 1, message });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_import_is_found_and_an_allowed_one_is_not() {
        let text =
            "//! x\nuse distributed::Communicator;\nuse burn_resnet::ResNet;\nlet datasets = crate::datasets::all();\n";
        let lines = |path| imports_follow_the_map(&Source::new(path, text)).iter().map(|f| f.line).collect::<Vec<_>>();
        assert_eq!(lines("datasets/src/a.rs"), [2, 3]);
        assert_eq!(lines("burn-resnet/tests/a.rs"), [2]);
        assert_eq!(lines("distributed/src/a.rs"), [3]);
        assert!(lines("trainer/src/a.rs").is_empty());
    }

    #[test]
    fn a_forbidden_dependency_is_found_in_every_notation() {
        let text = "[package]\nname = \"datasets\"\n\n[dependencies]\nburn.workspace = true\ndistributed = { path = \"x\" }\n\n[dev-dependencies]\nburn-resnet.workspace = true\n\n[dependencies.trainer]\npath = \"y\"\n";
        let lines: Vec<usize> =
            manifest_follows_the_map("datasets/Cargo.toml", text).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [6, 9, 11]);
        assert!(manifest_follows_the_map("trainer/Cargo.toml", text).is_empty());
        assert!(manifest_follows_the_map("Cargo.toml", "[workspace.dependencies]\nmpi = \"1\"\n").is_empty());
    }

    #[test]
    fn xtask_depends_on_what_builds_in_seconds_and_nothing_else() {
        let manifest = "[dependencies]\n# few\nburn = \"0\"\nclap = \"4\"\nserde_json.workspace = true\ntoml = \"1\"\n";
        assert_eq!(manifest_follows_the_map("xtask/Cargo.toml", manifest).len(), 1);
    }
}
