//! The commands that start one run: ours or another framework's, on any number of ranks.
//!
//! In: a program with its words, a [`Launcher`]. Out: prepared commands, one for all ranks or one a rank.
//! Invariant: pure, apart from free ports. Under each launcher a rank has its own cores where there are enough: mpirun and srun bind
//! it, for plain processes taskset does, for emulated hosts their agent. Several ranks of ours need an MPI launcher, so their plain way
//! is mpirun; one rank meets nobody, so it is plain instead of on a host.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::choice::Setting;
use super::framework::Framework;
use super::scripts::Scripts;
use super::settings::Launcher;
use cluster::cores;
use cluster::failure::{Failure, Outcome};
use cluster::hosts::Hosts;
use cluster::mpirun::{Mpirun, Placement, forget_surrounding_job};

/// By which a rank that no launcher numbers learns its number; `peers/ranks.py` reads it.
const RANK: &str = "LOCKSTEP_PEER_RANK";

/// What is to be started.
pub(super) struct Program {
    pub(super) file: PathBuf,
    pub(super) words: Vec<String>,
    pub(super) ranks: usize,
    pub(super) threads: usize,
    pub(super) needs_mpi: bool,
    /// Further variables of its processes.
    pub(super) environment: Vec<(String, String)>,
}

impl Program {
    /// A peer's script with the words that all of its processes get; on `hosts`, if there are any, its ranks meet.
    pub(super) fn peer(
        framework: Framework,
        python: &Path,
        scripts: &Scripts,
        ranks: usize,
        threads: usize,
        hosts: Option<&Hosts>,
    ) -> Outcome<Self> {
        // Nothing is written beside the scripts.
        let mut words = vec![
            "-B".to_owned(),
            scripts.path("run.py").display().to_string(),
        ];
        words.push(framework.word().to_owned());
        words.extend([
            "--ranks".to_owned(),
            ranks.to_string(),
            "--threads".to_owned(),
            threads.to_string(),
        ]);
        words.extend([
            "--rendezvous".to_owned(),
            addresses(ranks, hosts)?.join(","),
        ]);
        let (file, needs_mpi) = (python.to_owned(), framework.needs_mpi());
        Ok(Program {
            file,
            words,
            ranks,
            threads,
            needs_mpi,
            environment: Vec::new(),
        })
    }

    /// In which setting a peer competes.
    pub(super) fn set(&mut self, setting: &Setting) -> Result<(), String> {
        self.words.extend(setting.words());
        self.environment = setting.environment()?;
        Ok(())
    }

    /// The launcher that is really used.
    pub(super) fn launcher(&self, wanted: Launcher) -> Launcher {
        match wanted {
            Launcher::Plain if self.needs_mpi && self.ranks > 1 => Launcher::Mpirun,
            Launcher::Hosts(_) if self.ranks == 1 => Launcher::Plain,
            other => other,
        }
    }

    /// The commands whose processes are the ranks.
    pub(super) fn commands(
        &self,
        wanted: Launcher,
        mpirun: Option<&Mpirun>,
        hosts: Option<&Hosts>,
    ) -> Outcome<Vec<Command>> {
        let mut commands = match self.launcher(wanted) {
            Launcher::Plain => (0..self.ranks).map(|rank| self.plain(rank)).collect(),
            Launcher::Mpirun => vec![self.by_mpirun(mpirun)?],
            Launcher::Srun => vec![self.by_srun(mpirun)],
            Launcher::Hosts(_) => vec![self.on_hosts(mpirun, hosts)?],
        };
        for command in &mut commands {
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        }
        if self.launcher(wanted) != Launcher::Srun {
            commands.iter_mut().for_each(forget_surrounding_job);
        }
        Ok(commands)
    }

    /// A process beside the ranks, such as a server: on a core of its own where the ranks leave one, else on all of them.
    pub(super) fn beside(&self, role: &str) -> Command {
        let mut command = if self.leaves_a_core() {
            cores::pinned(&self.file, self.ranks * self.threads, 1)
        } else {
            Command::new(&self.file)
        };
        command.args(&self.words).args(["--role", role]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Whether the ranks leave a core to the processes beside them.
    pub(super) fn leaves_a_core(&self) -> bool {
        self.ranks * self.threads < cores::available()
    }

    fn plain(&self, rank: usize) -> Command {
        // Either all have cores of their own or none has.
        let mut command = if self.ranks * self.threads <= cores::available() {
            cores::pinned(&self.file, rank, self.threads)
        } else {
            Command::new(&self.file)
        };
        command.args(&self.words).env(RANK, rank.to_string());
        command
    }

    fn by_mpirun(&self, mpirun: Option<&Mpirun>) -> Outcome<Command> {
        let placement = Placement {
            ranks: self.ranks,
            hosts: Vec::new(),
            cores: cores::available(),
            threads: Some(self.threads),
            is_polite: false,
        };
        Mpirun::needed(mpirun)?.command(&placement, &self.file, &self.words)
    }

    fn on_hosts(&self, mpirun: Option<&Mpirun>, hosts: Option<&Hosts>) -> Outcome<Command> {
        let hosts = hosts.ok_or_else(|| Failure::Failed("no emulated hosts are up".to_owned()))?;
        hosts.command(Mpirun::needed(mpirun)?, self.ranks, &self.file, &self.words)
    }

    fn by_srun(&self, mpirun: Option<&Mpirun>) -> Command {
        let mut command = Command::new("srun");
        command.arg(format!(
            "--mpi={}",
            mpirun.map_or("pmix", Mpirun::srun_kind)
        ));
        // All on one machine: the ranks of other frameworks meet at its own address.
        command.args(["--input=none", "--kill-on-bad-exit=1", "--nodes=1"]);
        command.args([
            format!("--ntasks={}", self.ranks),
            format!("--cpus-per-task={}", self.threads),
        ]);
        command
            .arg("--cpu-bind=cores")
            .arg(&self.file)
            .args(&self.words);
        command
    }
}

/// Where each of several ranks listens: on its host, else at an address of this machine.
fn addresses(ranks: usize, hosts: Option<&Hosts>) -> Outcome<Vec<String>> {
    let ports = free_ports(ranks)?.into_iter().enumerate();
    let host = |rank| {
        hosts
            .filter(|_| ranks > 1)
            .map_or("127.0.0.1".to_owned(), |hosts| hosts.address(rank))
    };
    Ok(ports
        .map(|(rank, port)| format!("{}:{port}", host(rank)))
        .collect())
}

/// As many ports of this machine as nobody listens at.
fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let failed =
        |error: std::io::Error| Failure::Failed(format!("no free port on 127.0.0.1: {error}"));
    // All are held until all are found, so that none is found twice.
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    held.iter()
        .map(|listener| Ok(listener.local_addr().map_err(failed)?.port()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::hosts::Rate;
    use cluster::mpirun::Make;
    use cluster::process::shown;

    fn program(ranks: usize, threads: usize, needs_mpi: bool) -> Program {
        let (words, environment) = (vec!["word".to_owned()], Vec::new());
        Program {
            file: "program".into(),
            words,
            ranks,
            threads,
            needs_mpi,
            environment,
        }
    }

    #[test]
    fn a_plain_rank_is_a_process_that_knows_its_number() {
        let commands = program(2, 1000, false)
            .commands(Launcher::Plain, None, None)
            .unwrap();
        let lines: Vec<String> = commands.iter().map(shown).collect();
        assert_eq!(
            lines,
            [
                "LOCKSTEP_PEER_RANK=0 program word",
                "LOCKSTEP_PEER_RANK=1 program word"
            ]
        );
    }

    #[test]
    fn what_needs_mpi_is_plain_only_on_one_rank() {
        assert_eq!(
            program(1, 1, true).launcher(Launcher::Plain),
            Launcher::Plain
        );
        assert_eq!(
            program(2, 1, true).launcher(Launcher::Plain),
            Launcher::Mpirun
        );
        assert_eq!(
            program(2, 1, false).launcher(Launcher::Plain),
            Launcher::Plain
        );
        let refusal = program(2, 1, true)
            .commands(Launcher::Plain, None, None)
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("mpirun"), "{refusal}");
    }

    #[test]
    fn one_rank_is_plain_and_several_are_on_hosts() {
        let hosts = Launcher::Hosts(Rate::Unlimited);
        assert_eq!(program(1, 1, true).launcher(hosts), Launcher::Plain);
        assert_eq!(program(2, 1, false).launcher(hosts), hosts);
    }

    #[test]
    fn srun_starts_all_ranks_by_one_command() {
        let commands = program(2, 3, true)
            .commands(Launcher::Srun, None, None)
            .unwrap();
        let line = shown(&commands[0]);
        assert!(
            line.contains("srun --mpi=pmix") && line.contains("--ntasks=2 --cpus-per-task=3"),
            "{line}"
        );
        assert!(
            line.ends_with("program word") && commands.len() == 1,
            "{line}"
        );
        let mpich = Mpirun::of(Make::Mpich);
        let line = shown(
            &program(2, 3, true)
                .commands(Launcher::Srun, Some(&mpich), None)
                .unwrap()[0],
        );
        assert!(line.contains("srun --mpi=pmi2"), "{line}");
    }

    #[test]
    fn addresses_are_different() {
        let mut addresses = addresses(5, None).unwrap();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 5);
    }
}
