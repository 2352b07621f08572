//! Emulated hosts on this machine: network namespaces with their own names and addresses, joined by
//! a switch, each with a limited sending rate. `trainer hosts up|run|down` is for use by hand.
//!
//! In: a [`Rate`], a number of hosts, root. Out: `Hosts`, and programs on them by mpirun.
//! Invariant: everything made here has our prefix, and nothing else is changed. Hosts in use, or of
//! another living process, are removed only on request. Not emulated: latency beyond the kernel's,
//! CPUs, disks.
//! Source: ip-netns(8), veth(4), tc-tbf(8).

mod commands;
mod rate;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::Subcommand;

use crate::cores;
use crate::failure::{Outcome, at, failed, usage};
use crate::guard::Afterwards;
use crate::mpirun::Mpirun;
use crate::options;
use crate::output::say;
use crate::probe;
use crate::process;
use crate::run_directory;

pub use self::commands::address;
pub use self::rate::Rate;

const DEFAULT_COUNT: usize = 2;
/// Addresses are 10.98.0.1 to .254.
const MOST_HOSTS: usize = 254;
const PROGRAMS: [&str; 4] = ["ip", "tc", "sysctl", "unshare"];

const DETAILS: &str = "\
Example, as root:
    trainer hosts up 1gbit
    trainer hosts run -n 2 -- trainer bench --threads 1
    trainer hosts down
The hosts share this machine's processors, memory and disks, and their network has hardly any latency: only rates are \
emulated.";

/// Commands of `trainer hosts`.
#[derive(Debug, Clone, Subcommand)]
#[command(after_help = DETAILS)]
pub enum HostsCommand {
    /// Make hosts, or change the rate of existing ones.
    Up {
        /// Sending rate of each host, such as 200mbit or 1gbit; the receiving rate is not limited.
        #[arg(value_name = "RATE", default_value = "unlimited", value_parser = Rate::read)]
        rate: Rate,
        /// Number of hosts [default: 2]
        #[arg(long, value_name = "N", value_parser = options::count)]
        hosts: Option<usize>,
    },
    /// Start a program on the hosts by Open MPI's mpirun.
    Run {
        /// Number of ranks, spread over the hosts in turn [default: one for each host]
        #[arg(short = 'n', value_name = "N", value_parser = options::count)]
        ranks: Option<usize>,
        /// Program and its arguments, after `--`.
        #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
    /// Remove the hosts and end the processes on them.
    Down {
        /// Remove them only if this process has made them [default: any hosts]
        #[arg(long, value_name = "PID")]
        of: Option<u32>,
    },
}

impl HostsCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// Missing rights or programs; hosts that another process uses.
    pub fn run(&self) -> Outcome {
        require()?;
        match self {
            HostsCommand::Up { rate, hosts } => up(*rate, hosts.unwrap_or(DEFAULT_COUNT)),
            HostsCommand::Run { ranks, words } => start(*ranks, words),
            HostsCommand::Down { of } => {
                let _lock = lock()?;
                match of {
                    Some(process) if owner(&owner_file()) != Some(*process) => Ok(()),
                    _ => down(true),
                }
            }
        }
    }
}

fn up(rate: Rate, count: usize) -> Outcome {
    if num_standing() == count && commands::agent().exists() {
        refuse_others(&owner_file())?;
    } else {
        Hosts::make(count, None)?;
    }
    Hosts::standing(count).set_rate(rate)?;
    say!("{count} emulated hosts are up, {rate}; `trainer hosts down` removes them");
    Ok(())
}

fn start(ranks: Option<usize>, words: &[String]) -> Outcome {
    let count = num_standing();
    if count == 0 {
        return Err(failed!(
            "no emulated hosts: make them by `trainer hosts up 1gbit`"
        ));
    }
    let Some((name, words)) = words.split_first() else {
        return Ok(());
    };
    let program = probe::program(name).and_then(|program| std::path::absolute(program).ok());
    let program = program.ok_or_else(|| {
        usage!("`{name}` is not an executable program. Give its path, or a program in PATH.")
    })?;
    let mpirun = Mpirun::find();
    let mpirun = Mpirun::needed(mpirun.as_ref())?;
    let hosts = Hosts::standing(count);
    process::run(hosts.command(mpirun, ranks.unwrap_or(count), &program, words)?)
}

/// Refuses machines that cannot emulate hosts.
pub fn require() -> Outcome {
    if !process::is_root() {
        return Err(failed!(
            "emulated hosts need root: run this as root, or ask for no `hosts:…`"
        ));
    }
    let missing: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|name| probe::program(name).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(failed!(
        "emulated hosts need {}, not found in PATH: install iproute2, procps and util-linux",
        missing.join(", ")
    ))
}

/// Returns whether hosts can be emulated: root in a container may lack the rights.
pub fn can_be_made() -> bool {
    require().is_ok()
        && process::answer("unshare", &["--net", "--uts", "--mount", "true"]).is_some()
}

/// Returns whether emulated hosts exist.
pub fn are_there() -> bool {
    !commands::spaces().is_empty()
}

/// Emulated hosts in operation.
pub struct Hosts {
    count: usize,
    /// Removes the hosts when this value is dropped or this process has ended.
    #[expect(dead_code, reason = "its drop does the work")]
    afterwards: Option<Afterwards>,
}

impl Hosts {
    /// Makes hosts that are removed when the value is dropped, or when this process ends in any
    /// way.
    pub fn up(count: usize) -> Outcome<Self> {
        require()?;
        let program = std::env::current_exe().map_err(|error| failed!("this program: {error}"))?;
        let owner = std::process::id().to_string();
        // Prepared first, so that half-made hosts are removed too. `--of`: the next study may have
        // made hosts.
        let afterwards = Afterwards::run(&program, &["hosts", "down", "--of", &owner])?;
        Self::make(count, Some(&owner))?;
        Ok(Hosts {
            count,
            afterwards: Some(afterwards),
        })
    }

    /// Returns existing hosts, which stay.
    fn standing(count: usize) -> Self {
        Hosts {
            count,
            afterwards: None,
        }
    }

    fn make(count: usize, owner: Option<&str>) -> Outcome {
        if count > MOST_HOSTS {
            return Err(usage!("hosts: expected at most {MOST_HOSTS}, got {count}"));
        }
        let _lock = lock()?;
        refuse_others(&owner_file())?;
        // Hosts of an interrupted run, or another number of them.
        down(false)?;
        if let Some(owner) = owner {
            run_directory::write(&owner_file(), owner)?;
        }
        for command in commands::making(count) {
            asked(&command)?;
        }
        let cores = cores::per_part(count);
        for host in 1..=count {
            commands::write_names(host, count)?;
            // A namespace allows what the machine allows; reno is always allowed.
            let set =
                |setting: &str| asked(&commands::within(host, &format!("sysctl -qw {setting}")));
            set("net.ipv4.tcp_congestion_control=cubic")
                .or_else(|_| set("net.ipv4.tcp_congestion_control=reno"))?;
            set("net.ipv4.tcp_slow_start_after_idle=0")?;
        }
        commands::write_agent(&cores)
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Limits the sending rate of every host.
    pub fn set_rate(&self, rate: Rate) -> Outcome {
        for host in 1..=self.count {
            // Fails if there is no limit yet.
            let delete = format!("tc qdisc del dev {} root", commands::DEVICE);
            let _ = asked(&commands::within(host, &delete));
            if let Some(line) = rate.discipline() {
                asked(&commands::within(host, &line))?;
            }
        }
        Ok(())
    }

    /// Returns the command that starts a program on ranks spread over the hosts in turn.
    pub fn command(
        &self,
        mpirun: &Mpirun,
        ranks: usize,
        program: &Path,
        words: &[String],
    ) -> Outcome<Process> {
        let names: Vec<String> = (1..=self.count).map(commands::name).collect();
        mpirun.over_emulated_hosts(
            &names,
            ranks,
            &commands::agent(),
            commands::NETWORK,
            program,
            words,
        )
    }
}

/// Returns the number of namespaces of hosts.
fn num_standing() -> usize {
    let spaces = commands::spaces();
    spaces
        .iter()
        .filter(|space| *space != commands::SWITCH)
        .count()
}

/// Returns the file with the process that removes the hosts; absent for hosts made by hand.
fn owner_file() -> PathBuf {
    commands::folder().join("owner")
}

fn owner(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Refuses hosts that another living process uses, also between its runs.
fn refuse_others(file: &Path) -> Outcome {
    match owner(file).filter(|owner| {
        *owner != std::process::id() && Path::new("/proc").join(owner.to_string()).exists()
    }) {
        None => Ok(()),
        Some(owner) => Err(failed!(
            "emulated hosts are in use by process {owner}, as a study or a comparison keeps them: wait for its end, or end it"
        )),
    }
}

/// Waits until no other process makes or removes hosts; the system releases the lock with the file.
fn lock() -> Outcome<File> {
    let path = Path::new("/run/lockstep-hosts.lock");
    let locked = File::create(path).and_then(|file| file.lock().map(|()| file));
    locked.map_err(at(path))
}

/// Removes all hosts; ends processes on them, or refuses because of them.
fn down(ends_processes: bool) -> Outcome {
    for space in commands::spaces() {
        let pids = process::answer("ip", &["netns", "pids", &space]).unwrap_or_default();
        let pids: Vec<u32> = pids
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect();
        if !pids.is_empty() && !ends_processes {
            return Err(failed!(
                "emulated hosts are in use: {} processes run in {space}, such as {}: wait for their end, or end them by \
                 `trainer hosts down`",
                pids.len(),
                pids[0]
            ));
        }
        for pid in pids {
            // Fails if the process has just ended.
            let _ = process::send_signal(pid, "KILL");
        }
        asked(&format!("ip netns del {space}"))?;
        remove(&commands::names_folder(&space))?;
    }
    remove(&commands::folder())
}

fn remove(folder: &Path) -> Outcome {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// Runs a command line.
fn asked(line: &str) -> Outcome {
    let mut words = line.split(' ');
    let mut command = Process::new(words.next().unwrap_or_default());
    process::ask_for(command.args(words)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_another_living_process_are_refused_and_those_of_one_that_is_gone_are_not() {
        let file = std::env::temp_dir().join(format!("lockstep-jobs-{}-owner", std::process::id()));
        refuse_others(&file).unwrap();
        // Larger than any process number.
        for owner in [
            std::process::id().to_string(),
            "4294967295".to_owned(),
            String::new(),
        ] {
            fs::write(&file, owner).unwrap();
            refuse_others(&file).unwrap();
        }
        fs::write(&file, "1").unwrap();
        let refusal = refuse_others(&file).unwrap_err().to_string();
        fs::remove_file(file).unwrap();
        assert!(
            refusal.contains("process 1,") && refusal.contains("wait for its end"),
            "{refusal}"
        );
    }
}
