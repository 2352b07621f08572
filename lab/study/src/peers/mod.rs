//! Other frameworks on the same job: their environments, scripts, settings and processes.
//!
//! In: a [`Cell`] with a framework. Out: prepared commands, the result of a run, or the reason for
//! a gap.
//! Invariant: all frameworks have the same network, initial weights, batches, optimizer and steps,
//! written once by our trainer. The scripts of `lab/peers/` are part of this program.

mod framework;
mod install;
mod result;
mod scripts;
mod search;
mod setting;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::cores;
use cluster::failure::{Outcome, failed, usage};
use cluster::hosts;

pub(crate) use self::framework::Framework;
pub(crate) use self::install::last_line;
pub(crate) use self::result::{our_epochs, peer_result};
pub(crate) use self::setting::Setting;

use self::install::Installer;
use self::scripts::Scripts;
use crate::cell::{Cell, Place};
use crate::file::{PeersTable, StudyFile};

/// Variable with the number of a rank that no launcher numbers; `lab/peers/ranks.py` reads it.
pub(crate) const RANK: &str = "LOCKSTEP_PEER_RANK";

/// The frameworks of a study that can be started.
pub(crate) struct Peers {
    scripts: Scripts,
    /// Python of each framework, or the reason why it cannot be had.
    pythons: BTreeMap<Framework, Result<PathBuf, String>>,
}

impl Peers {
    /// Writes the scripts and installs what the cells need.
    ///
    /// # Errors
    /// The directory holds results of other scripts.
    pub(crate) fn prepare(file: &StudyFile, cells: &[&Cell], study: &Path) -> Outcome<Self> {
        let scripts = Scripts::of_study(&study.join("peers"))?;
        let table = &file.peers;
        let forbidden = std::env::var("LOCKSTEP_NO_INSTALL").unwrap_or_default();
        let is_forbidden = !["", "0", "false"].contains(&forbidden.as_str());
        let installer = Installer {
            folder: &table.folder()?,
            scripts: &scripts,
            may_install: table.install && !is_forbidden,
        };
        let mut pythons = BTreeMap::new();
        for framework in cells.iter().filter_map(|cell| cell.peer()) {
            let python = || installer.python(framework).map_err(|why| why.to_string());
            pythons.entry(framework).or_insert_with(python);
        }
        Ok(Peers { scripts, pythons })
    }

    /// Returns the reason why a cell cannot be run.
    pub(crate) fn gap(&self, cell: &Cell) -> Option<String> {
        let framework = cell.peer()?;
        let has_servers = !framework.roles(cell.ranks).is_empty();
        if let Some(refusal) = framework.refusal(&cell.setting("dtype"), cell.ranks) {
            return Some(refusal.to_owned());
        }
        if matches!(cell.place, Place::Hosts { .. }) && has_servers {
            let text = "its scheduler and server are not started on emulated hosts";
            return Some(text.to_owned());
        }
        let python = self.pythons.get(&framework)?.as_ref().err().cloned();
        let environment = cell.chosen.environment().err();
        python.or(environment.map(|failure| failure.to_string()))
    }

    /// Returns the Python and the words of all processes of a cell.
    ///
    /// # Errors
    /// A gap; no free port.
    pub(crate) fn words(
        &self,
        cell: &Cell,
        framework: Framework,
        words: &[String],
        job: &Path,
        directory: &Path,
    ) -> Outcome<(PathBuf, Vec<String>)> {
        let python = match self.pythons.get(&framework) {
            Some(Ok(python)) => python.clone(),
            _ => return Err(failed!("the framework is not installed")),
        };
        // -B: Python writes nothing into the folder of the scripts.
        let script = self.scripts.path("run.py").display().to_string();
        let mut all = vec!["-B".to_owned(), script];
        all.extend(words.iter().cloned());
        let pairs = [
            ("--ranks", cell.ranks.to_string()),
            ("--threads", cell.threads.to_string()),
            ("--rendezvous", addresses(cell)?.join(",")),
            ("--job", job.display().to_string()),
            ("--output", directory.display().to_string()),
        ];
        for (flag, value) in pairs {
            all.extend([flag.to_owned(), value]);
        }
        all.extend(cell.chosen.words());
        Ok((python, all))
    }

    /// Returns the servers of a cell: on their own core where the ranks leave one.
    pub(crate) fn servers(cell: &Cell, python: &Path, words: &[String]) -> Vec<Command> {
        let roles = cell.peer().map_or(&[][..], |peer| peer.roles(cell.ranks));
        let server = |role: &&str| {
            let mut command = match leaves_a_core(cell) {
                true => cores::pinned(python, cell.ranks * cell.threads, 1),
                false => Command::new(python),
            };
            command.args(words).args(["--role", role]);
            command
        };
        roles.iter().map(server).collect()
    }
}

/// Returns whether the ranks leave a core for servers.
pub(crate) fn leaves_a_core(cell: &Cell) -> bool {
    cell.ranks * cell.threads < cores::available()
}

/// Returns an address for each rank: on its emulated host, otherwise on this machine.
fn addresses(cell: &Cell) -> Outcome<Vec<String>> {
    let failed = |error: std::io::Error| failed!("no free port on 127.0.0.1: {error}");
    // All are held until all are found, so that none is found twice.
    let held: Vec<TcpListener> = (0..cell.ranks)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let mut addresses = Vec::new();
    for (rank, listener) in held.iter().enumerate() {
        let port = listener.local_addr().map_err(failed)?.port();
        let host = match cell.place {
            Place::Hosts { hosts, .. } => hosts::address(rank % hosts + 1),
            Place::Machine | Place::Slurm { .. } => "127.0.0.1".to_owned(),
        };
        addresses.push(format!("{host}:{port}"));
    }
    Ok(addresses)
}

impl PeersTable {
    /// Folder of the virtual environments: large, and shared by all comparisons.
    fn folder(&self) -> Outcome<PathBuf> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
        let cache = cache.ok_or_else(|| {
            usage!(
                "neither XDG_CACHE_HOME nor HOME is set, so that there is no folder for the environments of \
                 other frameworks. Set one, or name a folder: --peers-dir, [peers] folder."
            )
        })?;
        Ok(cache.join("lockstep/peers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_another_address_on_its_host() {
        for (network, start) in [("machine", "127.0.0.1:"), ("hosts:1gbit", "10.98.0.2:")] {
            let text = format!(
                "[[matrix]]\nframework = \"jax\"\nbatch_size_per_rank = 8\nranks = 2\nnetwork = \"{network}\"\n"
            );
            let (_, cells) = crate::plan::tests::study(&text).unwrap();
            let addresses = addresses(&cells[0]).unwrap();
            assert!(addresses.len() == 2 && addresses[0] != addresses[1]);
            assert!(addresses[1].starts_with(start), "{addresses:?}");
        }
    }
}
