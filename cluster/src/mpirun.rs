//! The command line of mpirun.
//!
//! In: an mpirun of this machine, a [`Placement`], a program. Out: the command.
//! Invariant: options other than `-n` depend on the make of mpirun. Without a restriction of this
//! machine no workaround is added. The user's `OMPI_MCA_*` variables are kept.
//! Source: Open MPI 4.1.4, `plm_rsh_component.c` (ends mpirun without ssh and rsh), `session_dir.c`
//! (makes a folder in TMPDIR, TEMP, TMP or `/tmp`); PMIx 4.2.2, `pmix_home_directory` (reads
//! `pw_dir` of a user that may have no entry).

use std::env;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Outcome, failed, usage};
use crate::probe;
use crate::process;

/// Open MPI refuses root unless both variables are set; in containers root is the only user.
const AS_ROOT: [(&str, &str); 2] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Folders for temporary files if the usual one is not writable.
const FALLBACK_FOLDERS: [&str; 2] = ["/dev/shm", "/var/tmp"];

/// Variables by which a user or Grid Engine configures remote starts.
const CHOICES_OF_A_SHELL: [&str; 3] = ["OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent", "PE_HOSTFILE"];

/// The mpirun of this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Mpirun {
    /// Path of the program.
    pub program: PathBuf,
    /// Make of the MPI.
    pub make: Make,
    /// Name and version, as the program prints them.
    pub version: String,
}

/// Make of an MPI.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Make {
    /// Open MPI.
    OpenMpi,
    /// MPICH with its launcher Hydra.
    Mpich,
    /// Intel MPI, other relatives of MPICH, and unknown ones.
    Other,
}

/// Placement of the ranks.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Number of ranks.
    pub ranks: usize,
    /// Host names, each with or without `:slots`; empty for this machine.
    pub hosts: Vec<String>,
    /// Cores of one machine.
    pub cores: usize,
    /// Compute threads of a rank; without a number a rank uses its share of the cores.
    pub threads: Option<usize>,
    /// For tests: shares busy cores.
    pub is_polite: bool,
}

impl Mpirun {
    /// Finds the mpirun in the variable `MPIRUN` or in PATH, and asks for its make.
    pub fn find() -> Option<Self> {
        match env::var_os("MPIRUN") {
            Some(named) => Self::at(probe::program(named)?),
            None => Self::at(probe::program("mpirun").or_else(|| probe::program("mpiexec"))?),
        }
    }

    /// Asks the program for its make.
    pub fn at(program: PathBuf) -> Option<Self> {
        let (make, version) = made_by(&process::answer(&program, &["--version"])?)?;
        Some(Mpirun {
            program,
            make,
            version,
        })
    }

    /// Returns its message for a killed rank 1: MPICH's names the process and the signal, not the
    /// rank.
    pub fn words_of_a_kill(&self) -> &'static str {
        match self.make {
            Make::OpenMpi => "rank 1",
            Make::Mpich | Make::Other => "signal 9",
        }
    }

    /// Returns srun's `--mpi` for programs of this make.
    pub fn srun_kind(&self) -> &'static str {
        match self.make {
            Make::OpenMpi => "pmix",
            Make::Mpich | Make::Other => "pmi2",
        }
    }

    /// Returns the command that starts a program on all ranks.
    pub fn command(
        &self,
        placement: &Placement,
        program: &Path,
        arguments: &[String],
    ) -> Outcome<Command> {
        let mut command = Command::new(&self.program);
        command.args(["-n", &placement.ranks.to_string()]);
        if self.make == Make::OpenMpi {
            Restrictions::found().work_around(&mut command, !placement.hosts.is_empty());
            command.args(placement.open_mpi_options()?);
        } else {
            command.args(placement.hydra_hosts());
        }
        if self.make == Make::Mpich {
            command.args(placement.hydra_binding());
        }
        command.arg(program).args(arguments);
        Ok(command)
    }

    /// Returns whether it reaches hosts by an agent in place of ssh.
    pub fn starts_on_emulated_hosts(&self) -> bool {
        self.make == Make::OpenMpi
    }

    /// Returns the mpirun that was found.
    pub fn needed(found: Option<&Self>) -> Outcome<&Self> {
        found.ok_or_else(|| {
            failed!("several ranks need mpirun, not found in PATH: load or install the MPI that the trainer was built with")
        })
    }

    /// Returns the command that starts a program on emulated hosts, with their agent in place of
    /// ssh. mpirun runs on the first host, where the others reach it.
    pub fn over_emulated_hosts(
        &self,
        hosts: &[String],
        ranks: usize,
        agent: &Path,
        network: &str,
        program: &Path,
        arguments: &[String],
    ) -> Outcome<Command> {
        if !self.starts_on_emulated_hosts() {
            return Err(failed!(
                "emulated hosts need Open MPI's mpirun, got {self}: install Open MPI"
            ));
        }
        let first = hosts.first().map_or("", String::as_str);
        let slots = ranks.div_ceil(hosts.len().max(1));
        let list: Vec<String> = hosts.iter().map(|host| format!("{host}:{slots}")).collect();
        let mut command = Command::new(agent);
        command.args([first, "--exec"]).arg(&self.program);
        command.args(["-n", &ranks.to_string(), "--host", &list.join(",")]);
        // Every daemon assumes that it has the whole machine; the agent has bound it to its part.
        command.args(["--map-by", "node", "--bind-to", "none"]);
        command.args(["--mca", "plm", "rsh", "--mca", "plm_rsh_agent"]);
        command.arg(agent);
        for (name, value) in [
            ("ras", "^slurm"),
            ("btl", "tcp,self,vader"),
            ("btl_tcp_if_include", network),
            ("oob_tcp_if_include", network),
        ] {
            command.args(["--mca", name, value]);
        }
        command.envs(AS_ROOT).arg(program).args(arguments);
        forget_surrounding_job(&mut command);
        Ok(command)
    }

    /// Returns the variables with the number of a rank.
    pub fn rank_variable(&self) -> &'static str {
        match self.make {
            Make::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Make::Mpich | Make::Other => "PMI_RANK",
        }
    }
}

impl fmt::Display for Mpirun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.program.display(), self.version)
    }
}

impl Placement {
    fn open_mpi_options(&self) -> Outcome<Vec<String>> {
        let mut options = Vec::new();
        if !self.hosts.is_empty() {
            options.extend(["--host".to_owned(), self.slots()?.join(",")]);
        }
        let ranks_per_machine = self.ranks.div_ceil(self.hosts.len().max(1));
        if ranks_per_machine > self.cores || self.is_polite {
            options.push("--oversubscribe".to_owned());
        }
        if self.is_polite {
            options.extend(["--mca", "mpi_yield_when_idle", "1"].map(str::to_owned));
        }
        let binding = match self.cores_of_a_rank() {
            Some(1) => "core",
            Some(cores) => {
                // By default a bound rank has one core, which all its threads would share.
                options.extend(["--map-by".to_owned(), format!("slot:PE={cores}")]);
                "core"
            }
            None => "none",
        };
        options.extend(["--bind-to", binding].map(str::to_owned));
        Ok(options)
    }

    /// Returns the number of cores that each rank is bound to.
    fn cores_of_a_rank(&self) -> Option<usize> {
        let ranks_per_machine = self.ranks.div_ceil(self.hosts.len().max(1));
        // An unbound rank takes its share of the cores; a binding would halve that again.
        let threads = self
            .threads
            .unwrap_or(self.cores / ranks_per_machine)
            .max(1);
        let fits = !self.is_polite && ranks_per_machine * threads <= self.cores;
        (fits && (threads == 1 || self.threads.is_some())).then_some(threads)
    }

    /// Returns the hosts for launchers of MPICH's family.
    fn hydra_hosts(&self) -> Vec<String> {
        match self.hosts.is_empty() {
            true => Vec::new(),
            false => vec!["-hosts".to_owned(), self.hosts.join(",")],
        }
    }

    /// Returns the binding for MPICH's launcher, Hydra.
    fn hydra_binding(&self) -> [String; 2] {
        let binding = match self.cores_of_a_rank() {
            Some(1) => "core".to_owned(),
            Some(cores) => format!("core:{cores}"),
            None => "none".to_owned(),
        };
        ["-bind-to".to_owned(), binding]
    }

    /// Returns the hosts with their slots; Open MPI starts one rank on a host without slots.
    fn slots(&self) -> Outcome<Vec<String>> {
        if self.hosts.iter().any(|host| host.contains(':')) {
            return Ok(self.hosts.clone());
        }
        if !self.ranks.is_multiple_of(self.hosts.len()) {
            return Err(usage!(
                "{} ranks do not spread evenly over {} hosts. Give their numbers, as in --hosts {}:{},…",
                self.ranks,
                self.hosts.len(),
                self.hosts[0],
                self.ranks.div_ceil(self.hosts.len())
            ));
        }
        let slots = self.ranks / self.hosts.len();
        let hosts = self.hosts.iter();
        Ok(hosts.map(|host| format!("{host}:{slots}")).collect())
    }
}

/// Restrictions of this machine for Open MPI's `mpirun`.
#[derive(Default)]
struct Restrictions {
    is_root: bool,
    /// True if neither a program nor a choice of the user starts processes on other hosts.
    lacks_remote_shell: bool,
    /// True for a user without a home directory, such as one without an entry in the password file.
    lacks_home: bool,
    /// Folder for temporary files, if the usual one is not writable.
    temporary: Option<PathBuf>,
}

impl Restrictions {
    fn found() -> Self {
        let mut usual = ["TMPDIR", "TEMP", "TMP"].into_iter();
        let usual = usual
            .find_map(env::var_os)
            .map_or("/tmp".into(), PathBuf::from);
        let has_program = |name: &&str| probe::program(name).is_some();
        let is_chosen = |name: &&str| env::var_os(name).is_some();
        Self {
            is_root: process::is_root(),
            lacks_remote_shell: !["ssh", "rsh"].iter().any(has_program)
                && !CHOICES_OF_A_SHELL.iter().any(is_chosen),
            lacks_home: env::home_dir().is_none(),
            temporary: fallback(&usual, &FALLBACK_FOLDERS.map(Path::new)),
        }
    }

    /// Adds options and variables; other hosts need a remote shell.
    fn work_around(&self, command: &mut Command, has_hosts: bool) {
        if self.is_root {
            command.envs(AS_ROOT);
        }
        if self.lacks_home {
            command.env("HOME", "/");
        }
        if let Some(folder) = &self.temporary {
            command.env("TMPDIR", folder);
        }
        if self.lacks_remote_shell && !has_hosts {
            command.args(["--mca", "plm", "^rsh"]);
        }
    }
}

/// Returns the first writable folder, if the usual one is not writable.
fn fallback(usual: &Path, folders: &[&Path]) -> Option<PathBuf> {
    let is_writable = |folder: &&Path| {
        let probe = folder.join(format!(".lockstep-launch-{}", std::process::id()));
        File::create_new(&probe).is_ok() && std::fs::remove_file(&probe).is_ok()
    };
    if is_writable(&usual) {
        return None;
    }
    let mut folders = folders.iter().copied();
    folders.find(is_writable).map(Path::to_path_buf)
}

/// Returns the make and its name from the answer to `--version`.
fn made_by(answer: &str) -> Option<(Make, String)> {
    let first = answer.lines().next()?.trim().to_owned();
    if first.contains("Open MPI") || first.contains("OpenRTE") {
        return Some((Make::OpenMpi, first));
    }
    // MPICH's launcher prints how it was built; Intel's has the same origin and another name.
    if first.starts_with("HYDRA") {
        let version = answer
            .lines()
            .find_map(|line| line.trim().strip_prefix("Version:"))?;
        return Some((Make::Mpich, format!("MPICH {}", version.trim())));
    }
    Some((Make::Other, first))
}

/// Prefixes of variables by which a job describes its ranks.
pub(crate) const OF_A_JOB: [&str; 6] = [
    "OMPI_COMM_WORLD_",
    "PMIX_",
    "PMI_",
    "MPI_LOCAL",
    "HYDI_",
    "SLURM_",
];

/// Removes the variables of a surrounding job: they describe other ranks.
pub fn forget_surrounding_job(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OF_A_JOB.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mpirun(make: Make) -> Mpirun {
        Mpirun {
            program: PathBuf::from("mpirun"),
            make,
            version: "X".to_owned(),
        }
    }

    fn placement(ranks: usize, cores: usize, threads: Option<usize>, hosts: &[&str]) -> Placement {
        Placement {
            ranks,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            cores,
            threads,
            is_polite: false,
        }
    }

    #[test]
    fn ranks_are_bound_to_cores_where_they_fit() {
        for (ranks, cores, threads, hosts, open_mpi, mpich) in [
            (2, 2, None, &[][..], "--bind-to core", "-bind-to core"),
            (
                3,
                2,
                None,
                &[],
                "--oversubscribe --bind-to none",
                "-bind-to none",
            ),
            // A rank with several cores finds its share unbound.
            (2, 9, None, &[], "--bind-to none", "-bind-to none"),
            (2, 3, None, &[], "--bind-to core", "-bind-to core"),
            (
                2,
                8,
                Some(2),
                &[],
                "--map-by slot:PE=2 --bind-to core",
                "-bind-to core:2",
            ),
            (2, 3, Some(2), &[], "--bind-to none", "-bind-to none"),
            (
                4,
                2,
                None,
                &["a", "b"],
                "--host a:2,b:2 --bind-to core",
                "-hosts a,b -bind-to core",
            ),
            (
                3,
                2,
                None,
                &["a:1", "b:2"],
                "--host a:1,b:2 --bind-to core",
                "-hosts a:1,b:2 -bind-to core",
            ),
        ] {
            let mut placement = placement(ranks, cores, threads, hosts);
            assert_eq!(placement.open_mpi_options().unwrap().join(" "), open_mpi);
            let hydra = [placement.hydra_hosts(), placement.hydra_binding().to_vec()].concat();
            assert_eq!(hydra.join(" "), mpich);
            placement.is_polite = true;
            let polite = placement.open_mpi_options().unwrap().join(" ");
            let expected = "--oversubscribe --mca mpi_yield_when_idle 1 --bind-to none";
            assert!(polite.ends_with(expected), "{polite}");
        }
        let uneven = placement(3, 2, None, &["a", "b"]);
        assert_eq!(uneven.open_mpi_options().unwrap_err().exit_code(), 2);
        let other = mpirun(Make::Other);
        let words = ["train".to_owned()];
        let command = other.command(&uneven, Path::new("trainer"), &words);
        let expected = "mpirun -n 3 -hosts a,b trainer train";
        assert_eq!(process::shown(&command.unwrap()), expected);
    }

    #[test]
    fn only_restrictions_are_worked_around_and_hosts_need_a_remote_shell() {
        let line = |restrictions: &Restrictions, has_hosts: bool| {
            let mut command = Command::new("mpirun");
            restrictions.work_around(&mut command, has_hosts);
            process::shown(&command)
        };
        assert_eq!(line(&Restrictions::default(), false), "mpirun");
        let bare = Restrictions {
            is_root: true,
            lacks_remote_shell: true,
            lacks_home: true,
            temporary: Some("/dev/shm".into()),
        };
        let variables = "HOME=/ OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=/dev/shm mpirun";
        assert_eq!(line(&bare, true), variables);
        assert!(line(&bare, false).starts_with(&format!("{variables} --mca plm ")));
    }

    #[test]
    fn a_folder_that_is_not_writable_has_the_first_fallback_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let denied = Path::new("/proc");
        let also_denied = Path::new("/no/such");
        assert_eq!(fallback(folder.path(), &[denied]), None);
        assert_eq!(
            fallback(denied, &[also_denied, folder.path()]),
            Some(folder.path().to_owned())
        );
        assert_eq!(fallback(denied, &[also_denied]), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn emulated_hosts_are_reached_by_their_agent_and_only_by_open_mpi() {
        let of = |make| {
            let hosts = ["h1".to_owned(), "h2".to_owned()];
            mpirun(make).over_emulated_hosts(
                &hosts,
                3,
                Path::new("/agent"),
                "10.0.0.0/24",
                Path::new("t"),
                &[],
            )
        };
        let line = process::shown(&of(Make::OpenMpi).unwrap());
        assert!(
            line.contains("/agent h1 --exec mpirun -n 3 --host h1:2,h2:2 --map-by node"),
            "{line}"
        );
        assert!(
            line.contains("plm_rsh_agent /agent") && line.ends_with(" t"),
            "{line}"
        );
        let refusal = of(Make::Other).unwrap_err().to_string();
        assert!(refusal.contains("need Open MPI"), "{refusal}");
    }

    #[test]
    fn the_make_of_a_launcher_is_in_its_answer() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n";
        for (answer, make, version) in [
            (
                "mpirun (Open MPI) 4.1.4\n\nReport bugs to",
                Make::OpenMpi,
                "mpirun (Open MPI) 4.1.4",
            ),
            (
                "mpirun.openmpi (OpenRTE) 4.1.4\n",
                Make::OpenMpi,
                "mpirun.openmpi (OpenRTE) 4.1.4",
            ),
            (hydra, Make::Mpich, "MPICH 4.0.2"),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.8\n",
                Make::Other,
                "Intel(R) MPI Library for Linux* OS, Version 2021.8",
            ),
        ] {
            assert_eq!(made_by(answer), Some((make, version.to_owned())));
        }
        assert_eq!(made_by(""), None);
    }
}
