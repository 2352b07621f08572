//! The virtual environments of the other frameworks.
//!
//! In: the folder that contains them, [`Scripts`] with their requirements. Out: a Python that can
//! import the framework, or a reason.
//! Invariant: a failed installation is a reason, never a failure of the comparison. An environment
//! made for the same requirements that imports its framework is used unchanged.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Framework;
use super::scripts::{Scripts, requirements};
use cluster::failure::{Outcome, at, failed};
use cluster::guard::Guarded;
use cluster::output::say;
use cluster::probe;
use cluster::process;

/// Limit of one program of an installation: large wheels over a slow line, or a build.
const LIMIT: Duration = Duration::from_secs(3600);

/// Longest reason in a table.
const MOST_REASON_CHARACTERS: usize = 200;

/// Folder of the environments.
pub(super) struct Installer<'a> {
    pub(super) folder: &'a Path,
    pub(super) scripts: &'a Scripts,
    pub(super) may_install: bool,
}

impl Installer<'_> {
    /// Returns the Python of a framework's environment, made if it is absent, or a reason.
    pub(super) fn python(&self, framework: Framework) -> Outcome<PathBuf> {
        let name = records::name(framework);
        let environment = self.folder.join(records::name(framework.on_one_rank()));
        let python = environment.join("bin/python");
        // The requirements of an environment.
        let stamp = environment.join(format!("lockstep-{name}.txt"));
        let is_current = fs::read_to_string(&stamp).is_ok_and(|text| text == pins(framework));
        if is_current && can_import(framework, &python) {
            return Ok(python);
        }
        let place = environment.display();
        if !self.may_install {
            return Err(failed!(
                "not installed in {place}, and --no-install is given"
            ));
        }
        say!("installing {name} into {place}");
        fs::create_dir_all(self.folder).map_err(at(self.folder))?;
        let step = |python: &Path, words: &[&OsStr]| {
            let mut command = Command::new(python);
            self.step(&name, command.args(words))
        };
        if !python.exists() {
            let (first, last) = framework.python();
            let base = interpreter(first, last).ok_or_else(|| {
                failed!(
                    "needs Python 3.{first} to 3.{last}, and none of python3, python3.N and pyenv's versions is one"
                )
            })?;
            step(
                &base,
                &["-m".as_ref(), "venv".as_ref(), environment.as_ref()],
            )?;
        }
        for name in framework.requirements() {
            let pip = "-m pip install --quiet --disable-pip-version-check -r";
            let mut words: Vec<&OsStr> = pip.split(' ').map(OsStr::new).collect();
            let file = self.scripts.path(&format!("requirements/{name}.txt"));
            words.push(file.as_ref());
            step(&python, &words)?;
        }
        // Horovod built for another PyTorch cannot be imported.
        if framework == Framework::Horovod && !can_import(framework, &python) {
            let script = self.scripts.path("install_horovod.py");
            step(&python, &[script.as_ref()])?;
        }
        if !can_import(framework, &python) {
            let module = framework.module();
            return Err(failed!("installed, but `import {module}` fails"));
        }
        fs::write(&stamp, pins(framework)).map_err(at(&stamp))?;
        Ok(python)
    }

    /// Runs one program of the installation; its last line is the reason of a failure.
    fn step(&self, framework: &str, command: &Command) -> Outcome {
        say!("$ {}", process::shown(command));
        let log = self.folder.join(format!("{framework}.log"));
        match Guarded::start(command, &log)?.finish(LIMIT)? {
            Some(0) => Ok(()),
            _ => {
                let text = fs::read_to_string(&log).unwrap_or_default();
                Err(failed!("{}", last_line(&text)))
            }
        }
    }
}

/// Returns the text of all requirements.
fn pins(framework: Framework) -> String {
    framework
        .requirements()
        .iter()
        .map(|name| requirements(name))
        .collect()
}

fn can_import(framework: Framework, python: &Path) -> bool {
    process::answer(python, &["-c", &format!("import {}", framework.module())]).is_some()
}

/// Returns the newest Python 3 with a minor version in this range.
fn interpreter(first: u32, last: u32) -> Option<PathBuf> {
    let mut candidates: Vec<PathBuf> = (first..=last)
        .rev()
        .filter_map(|minor| probe::program(format!("python3.{minor}")))
        .collect();
    candidates.extend(probe::program("python3"));
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let versions = pyenv
        .and_then(|root| fs::read_dir(root.join("versions")).ok())
        .into_iter()
        .flatten()
        .flatten();
    candidates.extend(versions.map(|version| version.path().join("bin/python")));
    // The name does not decide: a shim may stand for an absent version.
    let usable = candidates
        .into_iter()
        .filter_map(|python| Some((minor_version(&python)?, python)));
    usable
        .filter(|(minor, _)| (first..=last).contains(minor))
        .max_by_key(|(minor, _)| *minor)
        .map(|(_, python)| python)
}

/// Returns the minor version of a Python 3 that can make environments.
fn minor_version(python: &Path) -> Option<u32> {
    let script = "import sys, venv, ensurepip; print(sys.version_info[1] if sys.version_info[0] == 3 else '')";
    process::answer(python, &["-c", script])?
        .trim()
        .parse()
        .ok()
}

/// Returns the last line that is not blank, cut to the width of a table.
pub(crate) fn last_line(text: &str) -> String {
    let line = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("no output");
    match line.char_indices().nth(MOST_REASON_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_line_and_short() {
        assert_eq!(
            last_line("a\nERROR: no such package  \n\n"),
            "ERROR: no such package"
        );
        assert_eq!(last_line("\n"), "no output");
        assert_eq!(
            last_line(&"é".repeat(500)).chars().count(),
            MOST_REASON_CHARACTERS + 1
        );
    }

    #[test]
    fn no_python_is_found_for_versions_that_do_not_exist() {
        assert_eq!(interpreter(900, 901), None);
    }

    #[test]
    fn a_missing_environment_is_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let scripts = Scripts::of_study(&folder.path().join("scripts")).unwrap();
        let peers = folder.path().join("peers");
        let python = |may_install| {
            let installer = Installer {
                folder: &peers,
                scripts: &scripts,
                may_install,
            };
            installer.python(Framework::Jax).unwrap_err().to_string()
        };
        let forbidden = python(false);
        assert!(forbidden.contains("--no-install"), "{forbidden}");
        assert!(!peers.exists());
        // A file in place of the environment makes the program fail.
        fs::create_dir(&peers).unwrap();
        fs::write(peers.join("jax"), "").unwrap();
        let failed = python(true);
        assert!(
            !failed.is_empty() && failed.lines().count() == 1,
            "{failed}"
        );
    }
}
