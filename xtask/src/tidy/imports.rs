//! Rule about imports between crates: the map of ARCHITECTURE.md as a table.

use super::Finding;
use super::text::{File, member};

/// Crates of this workspace that a member may import, by their names in manifests.
const MAY_IMPORT: [(&str, &[&str]); 13] = [
    ("burn-resnet", &["layers"]),
    ("cluster", &["records"]),
    ("datasets", &["kernels"]),
    ("distributed", &[]),
    ("gpu", &["kernels"]),
    ("kernels", &[]),
    ("layers", &["gpu", "kernels"]),
    (
        "netbench",
        &["distributed", "kernels", "records", "simulate"],
    ),
    ("networks", &["layers"]),
    ("records", &[]),
    ("report", &["records"]),
    ("simulate", &["distributed", "records"]),
    ("study", &["cluster", "records"]),
];

/// Members that may import an external crate.
const USERS: [(&str, &[&str]); 2] = [
    (
        "burn",
        &[
            "burn-resnet",
            "datasets",
            "distributed",
            "gpu",
            "layers",
            "networks",
            "trainer",
        ],
    ),
    ("mpi", &["distributed"]),
];

/// All dependencies of xtask: it must build within seconds. `cluster` needs `records` already.
const OF_XTASK: [&str; 5] = ["clap", "cluster", "records", "serde_json", "toml"];

/// Returns true if a member may depend on a crate. The trainer may import all members, and a member
/// itself with other features, in its tests.
fn may_import(member: &str, name: &str) -> bool {
    let find = |table: &[(&str, &'static [&str])], name: &str| {
        let mut rows = table.iter();
        rows.find(|(found, _)| *found == name)
            .map(|(_, names)| *names)
    };
    if member == "xtask" {
        return OF_XTASK.contains(&name);
    }
    if let Some(users) = find(&USERS, name) {
        return users.contains(&member);
    }
    let is_member = name == "trainer" || find(&MAY_IMPORT, name).is_some();
    let imports = find(&MAY_IMPORT, member);
    !is_member || name == member || imports.is_none_or(|names| names.contains(&name))
}

/// Checks the dependencies in a manifest.
pub(super) fn manifest_follows_the_map(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The last lists the dependencies of all members.
    if !file.path.ends_with("/Cargo.toml") || file.path == "xtask/workspace-hack/Cargo.toml" {
        return findings;
    }
    let member = member(&file.path);
    let mut is_dependencies = false;
    for (index, line) in file.lines.iter().enumerate() {
        let line = line.trim();
        let mut name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            is_dependencies = section.ends_with("dependencies");
            // A table for one dependency, as in `[dependencies.burn]`.
            let table = section.split_once("dependencies.");
            name = table.map_or("", |(_, name)| name);
        } else if !is_dependencies || name.starts_with('#') {
            continue;
        }
        if !name.is_empty() && !may_import(member, name) {
            let message = format!("{member} must not depend on {name}");
            findings.push(Finding::at(index, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        super::super::tests::lines(manifest_follows_the_map, path, text)
    }

    #[test]
    fn a_forbidden_dependency_is_found_in_every_notation() {
        let text = "[package]\nname = \"datasets\"\n\n[dependencies]\nburn.workspace = true\ndistributed = { path = \"x\" }\n\n[dev-dependencies]\nburn-resnet.workspace = true\n\n[dependencies.trainer]\npath = \"y\"\n";
        assert_eq!(lines("datasets/Cargo.toml", text), [6, 9, 11]);
        assert_eq!(lines("trainer/Cargo.toml", text), [0; 0]);
        let text = "[workspace.dependencies]\nmpi = \"1\"\n";
        assert_eq!(lines("Cargo.toml", text), [0; 0]);
        let text =
            "[dependencies]\n# few\nburn = \"0\"\nclap = \"4\"\nserde_json.workspace = true\n";
        assert_eq!(lines("xtask/Cargo.toml", text), [3]);
    }
}
