//! The command line of mpirun.
//!
//! In: an mpirun of this machine, a [`Placement`], a program. Out: the command.
//! Invariant: pure, except for finding mpirun. Options other than `-n` depend on the make of
//! mpirun.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, Outcome};
use crate::probe;
use crate::process;
use crate::surroundings::Surroundings;

/// The mpirun of this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Mpirun {
    program: PathBuf,
    make: Make,
    /// Name and version in its own words.
    version: String,
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

    /// Returns `mpirun` of the PATH as this make, without asking the program.
    pub fn of(make: Make) -> Self {
        Mpirun {
            program: "mpirun".into(),
            make,
            version: "X".to_owned(),
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

    /// Returns the make.
    pub fn make(&self) -> Make {
        self.make
    }

    /// Returns name and version in its own words.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the path.
    pub fn program(&self) -> &Path {
        &self.program
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
        self.command_for(placement, program, arguments, &Surroundings::found())
    }

    fn command_for(
        &self,
        placement: &Placement,
        program: &Path,
        arguments: &[String],
        surroundings: &Surroundings,
    ) -> Outcome<Command> {
        let mut command = Command::new(&self.program);
        command.args(["-n", &placement.ranks.to_string()]);
        match self.make {
            Make::OpenMpi => {
                let (options, variables) = surroundings.for_open_mpi(!placement.hosts.is_empty());
                command
                    .args(options)
                    .envs(variables)
                    .args(placement.open_mpi_options()?);
            }
            Make::Mpich | Make::Other => {
                if !placement.hosts.is_empty() {
                    command.args(["-hosts", &placement.hosts.join(",")]);
                }
                if self.make == Make::Mpich {
                    command.args(placement.hydra_binding());
                }
            }
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
            let text =
                "several ranks need mpirun, not found in PATH: load or install the MPI that the trainer was built with";
            Failure::Failed(text.to_owned())
        })
    }

    /// Refuses an mpirun that cannot start ranks on emulated hosts.
    pub fn expect_emulated_hosts(&self) -> Outcome {
        if self.starts_on_emulated_hosts() {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "emulated hosts need Open MPI's mpirun, got {self}: install Open MPI"
        )))
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
        self.expect_emulated_hosts()?;
        let first = hosts.first().map_or("", String::as_str);
        let slots = ranks.div_ceil(hosts.len().max(1));
        let list: Vec<String> = hosts.iter().map(|host| format!("{host}:{slots}")).collect();
        let mut command = Command::new(agent);
        command.args([first, "--exec"]).arg(&self.program).args([
            "-n",
            &ranks.to_string(),
            "--host",
            &list.join(","),
        ]);
        // Every daemon assumes that it has the whole machine; the agent has bound it to its part.
        command.args(["--map-by", "node", "--bind-to", "none"]);
        command
            .args(["--mca", "plm", "rsh", "--mca", "plm_rsh_agent"])
            .arg(agent)
            .args(["--mca", "ras", "^slurm"]);
        command.args(["--mca", "btl", "tcp,self,vader"]);
        command.args([
            "--mca",
            "btl_tcp_if_include",
            network,
            "--mca",
            "oob_tcp_if_include",
            network,
        ]);
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.arg(program).args(arguments);
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
            return Err(Failure::Usage(format!(
                "{} ranks do not spread evenly over {} hosts. Give their numbers, as in --hosts {}:{},…",
                self.ranks,
                self.hosts.len(),
                self.hosts[0],
                self.ranks.div_ceil(self.hosts.len()),
            )));
        }
        let slots = self.ranks / self.hosts.len();
        Ok(self
            .hosts
            .iter()
            .map(|host| format!("{host}:{slots}"))
            .collect())
    }
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

    fn line_of(make: Make, placement: &Placement, is_root: bool) -> String {
        let surroundings = Surroundings {
            is_root,
            has_remote_shell: true,
            has_home: true,
            temporary: None,
        };
        let words = ["train".to_owned()];
        let command =
            Mpirun::of(make).command_for(placement, Path::new("trainer"), &words, &surroundings);
        process::shown(&command.unwrap())
    }

    fn placement(ranks: usize, cores: usize) -> Placement {
        Placement {
            ranks,
            hosts: Vec::new(),
            cores,
            threads: None,
            is_polite: false,
        }
    }

    #[test]
    fn ranks_that_fit_are_bound_to_cores() {
        assert_eq!(
            line_of(Make::OpenMpi, &placement(2, 2), false),
            "mpirun -n 2 --bind-to core trainer train"
        );
    }

    #[test]
    fn only_more_ranks_than_cores_are_oversubscribed() {
        let line = line_of(Make::OpenMpi, &placement(3, 2), false);
        assert_eq!(
            line,
            "mpirun -n 3 --oversubscribe --bind-to none trainer train"
        );
    }

    #[test]
    fn a_rank_with_several_cores_to_itself_finds_its_share_unbound() {
        assert!(line_of(Make::OpenMpi, &placement(2, 9), false).contains("-n 2 --bind-to none"));
        assert!(line_of(Make::OpenMpi, &placement(2, 3), false).contains("-n 2 --bind-to core"));
    }

    #[test]
    fn a_rank_with_threads_gets_a_core_for_each() {
        let roomy = Placement {
            threads: Some(2),
            ..placement(2, 8)
        };
        assert!(
            line_of(Make::OpenMpi, &roomy, false).contains("--map-by slot:PE=2 --bind-to core")
        );
        let tight = Placement {
            threads: Some(2),
            ..placement(2, 3)
        };
        assert!(line_of(Make::OpenMpi, &tight, false).contains("-n 2 --bind-to none"));
    }

    #[test]
    fn tests_share_busy_cores() {
        let polite = Placement {
            is_polite: true,
            ..placement(1, 8)
        };
        let expected =
            "mpirun -n 1 --oversubscribe --mca mpi_yield_when_idle 1 --bind-to none trainer train";
        assert_eq!(line_of(Make::OpenMpi, &polite, false), expected);
    }

    #[test]
    fn root_is_allowed_by_both_variables_and_nobody_else_sets_them() {
        let line = line_of(Make::OpenMpi, &placement(1, 1), true);
        assert!(
            line.starts_with("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun"),
            "{line}"
        );
        assert!(!line_of(Make::OpenMpi, &placement(1, 1), false).contains("ROOT"));
    }

    #[test]
    fn ranks_spread_evenly_over_hosts_or_as_told() {
        let even = Placement {
            hosts: vec!["a".into(), "b".into()],
            ..placement(4, 2)
        };
        assert!(line_of(Make::OpenMpi, &even, false).contains("--host a:2,b:2 --bind-to core"));
        let given = Placement {
            hosts: vec!["a:1".into(), "b:2".into()],
            ..placement(3, 2)
        };
        assert!(line_of(Make::OpenMpi, &given, false).contains("--host a:1,b:2"));
        let uneven = Placement { ranks: 3, ..even };
        assert_eq!(uneven.open_mpi_options().unwrap_err().exit_code(), 2);
    }

    #[test]
    fn emulated_hosts_are_reached_by_their_agent_and_only_by_open_mpi() {
        let of = |make| {
            let hosts = ["h1".to_owned(), "h2".to_owned()];
            Mpirun::of(make).over_emulated_hosts(
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
        assert!(
            of(Make::Other)
                .unwrap_err()
                .to_string()
                .contains("need Open MPI")
        );
    }

    #[test]
    fn mpich_is_bound_by_its_own_options() {
        assert_eq!(
            line_of(Make::Mpich, &placement(2, 2), true),
            "mpirun -n 2 -bind-to core trainer train"
        );
        let roomy = Placement {
            threads: Some(2),
            ..placement(2, 8)
        };
        assert!(line_of(Make::Mpich, &roomy, false).contains("-n 2 -bind-to core:2 "));
        let polite = Placement {
            is_polite: true,
            ..placement(3, 2)
        };
        assert!(line_of(Make::Mpich, &polite, false).contains("-n 3 -bind-to none "));
    }

    #[test]
    fn whose_a_launcher_is_stands_in_its_answer() {
        let of = |answer: &str| made_by(answer).unwrap();
        assert_eq!(
            of("mpirun (Open MPI) 4.1.4\n\nReport bugs to").0,
            Make::OpenMpi
        );
        assert_eq!(of("mpirun.openmpi (OpenRTE) 4.1.4\n").0, Make::OpenMpi);
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n";
        assert_eq!(of(hydra), (Make::Mpich, "MPICH 4.0.2".to_owned()));
        assert_eq!(
            of("Intel(R) MPI Library for Linux* OS, Version 2021.8\n").0,
            Make::Other
        );
        assert_eq!(made_by(""), None);
    }

    #[test]
    fn another_make_gets_no_option_of_open_mpi() {
        let hosts = Placement {
            hosts: vec!["a".into(), "b".into()],
            ..placement(4, 1)
        };
        assert_eq!(
            line_of(Make::Other, &hosts, true),
            "mpirun -n 4 -hosts a,b trainer train"
        );
    }
}
