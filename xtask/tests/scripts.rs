//! Scripts that pack files for other machines and install packages.
//!
//! In: `xtask/src/*.sh` and `licences.py`, `lab/peers/gpu`. Invariant: nothing is built, fetched or
//! installed.
#![allow(clippy::unwrap_used, reason = "a test stops at a missing file")]
#![allow(clippy::print_stdout, reason = "a test reports that it is skipped")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn run(program: &str, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(words).current_dir(root());
    command.output().unwrap()
}

/// Returns true if a python3 of at least 3.`minor` is installed; otherwise prints that the test is
/// skipped.
fn has_python(minor: u32) -> bool {
    let is_new = format!("import sys; assert sys.version_info >= (3, {minor})");
    let mut command = Command::new("python3");
    let found = command.args(["-c", &is_new]).status();
    let has_python = found.is_ok_and(|status| status.success());
    if !has_python {
        println!("SKIPPED: no python3 of 3.{minor} or newer");
    }
    has_python
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("lockstep-xtask-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_crates_in_the_program_are_listed_with_licences_and_checksums_and_each_text_once() {
    if !has_python(6) {
        return;
    }
    let folder = folder("licences");
    let flags = ["--no-default-features", "--features", "flex,download"];
    let words = ["xtask/src/licences.py", folder.to_str().unwrap()];
    let output = run("python3", &[&words[..], &flags].concat());
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(folder.join("LICENSES-THIRD-PARTY")).unwrap();
    assert_eq!(text.matches("\nserde 1.").count(), 2, "two licences");
    let line = "=".repeat(80);
    let sections: Vec<&str> = text.split(&line).skip(1).collect();
    let sections: Vec<(&str, &str)> = sections
        .as_chunks()
        .0
        .iter()
        .map(|[a, b]| (*a, *b))
        .collect();
    let texts: BTreeSet<&str> = sections.iter().map(|(_, text)| *text).collect();
    assert_eq!(texts.len(), sections.len());
    let is_of_authors = |(names, text): &&(&str, &str)| {
        names.contains("\nburn-flex ") && text.contains("no text of the licence named above")
    };
    assert_eq!(sections.iter().filter(is_of_authors).count(), 1);
    let bill = fs::read_to_string(folder.join("bill-of-materials.cdx.json")).unwrap();
    let bill: serde_json::Value = serde_json::from_str(&bill).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        bill["metadata"]["component"]["purl"],
        format!("pkg:cargo/trainer@{version}")
    );
    let components = bill["components"].as_array().unwrap();
    let find = |name: &str| {
        components
            .iter()
            .find(|component| component["name"] == name)
    };
    let checksum = find("burn").unwrap()["hashes"][0]["content"].as_str();
    assert_eq!(checksum.unwrap().len(), 64);
    assert!(find("cc").is_none() && find("serde_derive").is_none());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn packages_are_installed_without_a_password_and_without_starting_daemons() {
    let folder = folder("install");
    let fake = |name: &str, line: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    fake("id", "echo 1000");
    fake("sudo", "echo \"sudo $*\"");
    fake("apt-cache", "[ \"$3\" != new ] || exit 100; echo found");
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let script = root().join("xtask/src/checks.sh");
    let mut command = Command::new(script);
    command.args(["install", "old", "new"]).env("PATH", path);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.iter().all(|line| line.starts_with("sudo -n ")),
        "{text}"
    );
    let apt = |words: &str| {
        let is_meant = |line: &&str| line.contains("noninteractive") && line.ends_with(words);
        lines.iter().position(is_meant).unwrap()
    };
    let install = apt("install --yes --no-install-recommends old new");
    assert!(apt("update") < install, "{text}");
    if !Path::new("/usr/sbin/policy-rc.d").exists() {
        assert!(
            lines[0].contains("policy-rc.d") && text.contains("exit 101"),
            "{text}"
        );
        assert!(
            lines
                .last()
                .unwrap()
                .ends_with("rm -f /usr/sbin/policy-rc.d"),
            "{text}"
        );
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_missing_file_of_the_known_answer_is_named() {
    let folder = folder("known");
    for missing in ["resnet20-12fca82f.th", "test_batch.bin"] {
        let words = ["gpu_check", folder.to_str().unwrap()];
        let output = run("xtask/src/checks.sh", &words);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains(&format!("{missing}. Name another folder")),
            "{text}"
        );
        fs::write(folder.join(missing), "").unwrap();
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_scripts_for_a_gpu_machine_pass_their_own_tests() {
    if !has_python(9) {
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-B", "-W", "error", "-m", "unittest"]);
    let output = command.current_dir(root().join("lab/peers/gpu")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_shell_script_for_a_gpu_machine_refuses_what_it_cannot_use() {
    for words in [&["--python"][..], &["--python", "/nonexistent/python"]] {
        let words = [&["lab/peers/gpu/gpu-check.sh"], words].concat();
        let output = run("bash", &words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("python"), "{words:?}");
    }
}

#[test]
fn modules_that_a_packed_script_imports_are_packed_too() {
    let peers = root().join("lab/peers");
    let script = fs::read_to_string(root().join("xtask/src/checks.sh")).unwrap();
    let (_, list) = script.split_once("lab/peers/{").unwrap();
    // All of lab/peers/gpu is packed, and these modules of lab/peers.
    let packed: Vec<&str> = list.split_once('}').unwrap().0.split(',').collect();
    let files = fs::read_dir(peers.join("gpu")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let others = packed.iter().map(|name| peers.join(format!("{name}.py")));
    for file in files
        .chain(others)
        .filter(|file| file.extension().is_some_and(|end| end == "py"))
    {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().map(str::trim_start) {
            let imported = line.strip_prefix("import ").or(line.strip_prefix("from "));
            let module = imported.and_then(|rest| rest.split([' ', ',', '.']).next());
            let module = module.unwrap_or_default();
            let is_of_peers = peers.join(format!("{module}.py")).is_file();
            assert!(
                !is_of_peers || packed.contains(&module),
                "{file:?} imports {module}"
            );
        }
    }
}
