//! Who may import whom: the map of ARCHITECTURE.md as a table.

use super::Finding;
use super::source::member;

/// The crates of this workspace that a member may know, by their names in manifests.
const MAY_KNOW: [(&str, &[&str]); 11] = [
    ("burn-resnet", &["layers"]),
    ("cluster", &["records"]),
    ("datasets", &["kernels"]),
    ("distributed", &[]),
    ("gpu", &[]),
    ("kernels", &[]),
    ("layers", &["gpu", "kernels"]),
    ("records", &[]),
    ("report", &["records"]),
    ("simulate", &["distributed", "records"]),
    ("study", &["cluster", "records"]),
];

/// Crates of others that few members may know.
const FEW_MAY_KNOW: [(&str, &[&str]); 2] = [
    (
        "burn",
        &[
            "burn-resnet",
            "datasets",
            "distributed",
            "gpu",
            "layers",
            "trainer",
        ],
    ),
    ("mpi", &["distributed"]),
];

/// A member may know itself, with other features, in its tests; the trainer knows all.
fn may_know(member: &str, name: &str) -> bool {
    if let Some((_, members)) = FEW_MAY_KNOW
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
    {
        return members.contains(&member);
    }
    let is_ours = name == "trainer" || MAY_KNOW.iter().any(|(known, _)| *known == name);
    let known = MAY_KNOW.iter().find(|(of, _)| *of == member);
    !is_ours || name == member || known.is_none_or(|(_, known)| known.contains(&name))
}

/// What xtask may depend on: what reads its command line and the formats it meets, and what starts processes, all built in seconds.
const XTASK_MAY_KNOW: [&str; 4] = ["clap", "cluster", "serde_json", "toml"];

/// A manifest depends on no crate that its crate must not know; xtask depends on next to nothing.
pub(super) fn manifest_follows_the_map(path: &str, text: &str) -> Vec<Finding> {
    let member = match path {
        // Not a part of the program: it lists the dependencies of all members.
        "xtask/workspace-hack/Cargo.toml" => return Vec::new(),
        path => member(path),
    };
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
            line.split(['.', '=', ' '])
                .next()
                .filter(|name| !name.is_empty() && !name.starts_with('#'))
        } else {
            None
        };
        let Some(name) = name.filter(|_| path != "Cargo.toml") else {
            continue;
        };
        if member == "xtask" && !XTASK_MAY_KNOW.contains(&name) {
            let known = XTASK_MAY_KNOW.join(", ");
            let message = format!(
                "xtask depends on {name}: expected only {known}, so that it builds in seconds"
            );
            findings.push(Finding {
                line: index + 1,
                message,
            });
        } else if !may_know(member, name) {
            findings.push(Finding {
                line: index + 1,
                message: format!("{member} must not depend on {name}"),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_dependency_is_found_in_every_notation() {
        let text = "[package]\nname = \"datasets\"\n\n[dependencies]\nburn.workspace = true\ndistributed = { path = \"x\" }\n\n[dev-dependencies]\nburn-resnet.workspace = true\n\n[dependencies.trainer]\npath = \"y\"\n";
        let lines: Vec<usize> = manifest_follows_the_map("datasets/Cargo.toml", text)
            .iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(lines, [6, 9, 11]);
        assert!(manifest_follows_the_map("trainer/Cargo.toml", text).is_empty());
        assert!(
            manifest_follows_the_map("Cargo.toml", "[workspace.dependencies]\nmpi = \"1\"\n")
                .is_empty()
        );
    }

    #[test]
    fn xtask_depends_on_what_builds_in_seconds_and_nothing_else() {
        let manifest = "[dependencies]\n# few\nburn = \"0\"\nclap = \"4\"\nserde_json.workspace = true\ntoml = \"1\"\n";
        assert_eq!(
            manifest_follows_the_map("xtask/Cargo.toml", manifest).len(),
            1
        );
    }
}
