//! The cluster's processes: starting them as root, finding them again, stopping them.
//!
//! In: the cluster's folder. Out: [`Daemons`].
//! Invariant: a process is ours if it holds a file of the folder open or, being a task of a job, was started with the folder's
//! `slurm.conf`; nothing else is ever signalled.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::packages::{self, Privilege, succeeds};
use cluster::{probe, process};

use super::ASK_LIMIT_S;
use super::configuration::{CONTROLLER, NODES, with_kill_wait};
use super::short_name::short_name;

/// How long daemons may take to end by themselves.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Prints the number of every process of the cluster: its daemons, and the tasks of its jobs.
const PROCESSES: &str = r#"
for p in /proc/[0-9]*; do
    read -r comm <"$p/comm" || continue
    case $comm in
    slurmctld | slurmscriptd | slurmd | slurmstepd | munged) ls -l "$p/fd" | grep -qF -- "-> $1/" || continue ;;
    *) grep -qz '^SLURMD_NODENAME=' "$p/environ" && grep -qzF -e "SLURM_CONF=$1/" -e "SLURM_CONF=$2/" "$p/environ" || continue ;;
    esac
    echo "${p#/proc/} $comm"
done 2>/dev/null
true"#;

/// The processes of the cluster in one folder.
#[derive(Clone)]
pub(super) struct Daemons {
    /// The folder itself.
    real: PathBuf,
    /// The folder by a name short enough for sockets: itself, or a link to it.
    short: PathBuf,
    privilege: Privilege,
}

impl Daemons {
    pub(super) fn of(folder: &Path) -> Result<Self, String> {
        if !folder.exists() {
            return Err(format!("no cluster: {} is not there", folder.display()));
        }
        let real = folder
            .canonicalize()
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let short = short_name(&real)?;
        Ok(Daemons {
            real,
            short,
            privilege: Privilege::find(),
        })
    }

    /// The folder as the daemons know it.
    pub(super) fn folder(&self) -> &Path {
        &self.short
    }

    pub(super) fn slurm_conf(&self) -> PathBuf {
        self.short.join("slurm.conf")
    }

    pub(super) fn start(&self) -> Result<(), String> {
        self.start_munged()?;
        self.start_daemon("slurmctld", &self.short, CONTROLLER, "exec slurmctld")?;
        for node in NODES {
            // Open MPI names its shared memory by host and local rank: two nodes with one /dev/shm would map each other's.
            let script =
                format!("mount -t tmpfs -o mode=1777 shm /dev/shm && exec slurmd -N {node}");
            self.start_daemon("slurmd", &self.short.join(node), node, &script)?;
        }
        Ok(())
    }

    /// Own keeper of credentials, with a key of its own: no other on this machine is asked or disturbed.
    fn start_munged(&self) -> Result<(), String> {
        let run = self.short.join("run");
        let key = run.join("munge.key");
        let mut bytes = [0_u8; 128];
        let failed = |error| format!("{}: {error}", key.display());
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(failed)?;
        let mut options = File::options();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&key)
            .map_err(failed)?;
        std::io::Write::write_all(&mut &file, &bytes).map_err(failed)?;
        let mut command = Command::new(program("munged").unwrap_or_else(|| "munged".into()));
        // A group may be allowed to write to the folder, which munged refuses unless forced.
        command.arg("--force");
        for (flag, name) in [
            ("--key-file", "munge.key"),
            ("--socket", "munge.socket"),
            ("--pid-file", "munged.pid"),
            ("--log-file", "munged.log"),
            ("--seed-file", "munged.seed"),
        ] {
            command.arg(format!("{flag}={}", run.join(name).display()));
        }
        self.started("munged", &mut command)
    }

    /// Starts a daemon, which goes into the background when it is ready, with a host name and mounts of its own.
    fn start_daemon(
        &self,
        name: &str,
        folder: &Path,
        host: &str,
        script: &str,
    ) -> Result<(), String> {
        let mut command = self.as_root("env");
        command.arg(format!(
            "SLURM_CONF={}",
            folder.join("slurm.conf").display()
        ));
        command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args([
            "unshare",
            "--mount",
            "--uts",
            "--propagation",
            "private",
            "sh",
            "-c",
        ]);
        self.started(name, command.arg(format!("hostname {host} && {script}")))
    }

    fn started(&self, name: &str, command: &mut Command) -> Result<(), String> {
        let log = self.real.join("log").join(format!("start-{name}.log"));
        let in_log = |error| format!("{}: {error}", log.display());
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(in_log)?;
        let copy = file.try_clone().map_err(in_log)?;
        let status = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .status()
            .map_err(|error| process::cannot_start(command, &error).to_string())?;
        if status.success() {
            return Ok(());
        }
        let words = fs::read_to_string(&log).unwrap_or_default();
        Err(format!(
            "{name} did not start ({status}):\n{words}{}",
            self.last_words()
        ))
    }

    /// What a short command of Slurm answers.
    pub(super) fn ask(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", ASK_LIMIT_S, name])
            .args(arguments);
        cluster::mpirun::forget_surrounding_job(&mut command);
        command
            .env("SLURM_CONF", self.slurm_conf())
            .stdin(Stdio::null());
        let output = command
            .output()
            .map_err(|error| process::cannot_start(&command, &error).to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "`{}` failed ({}): {}",
            process::shown(&command),
            output.status,
            text.trim()
        ))
    }

    /// The ends of the daemons' logs.
    pub(super) fn last_words(&self) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(self.real.join("log"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(8).collect();
            text.push_str(&format!("{}:\n", entry.path().display()));
            text.extend(lines.iter().rev().map(|line| format!("  {line}\n")));
        }
        text
    }

    /// Ends all jobs, then all daemons, and leaves the folder.
    pub(super) fn stop(&self) -> Result<(), String> {
        if self
            .processes()?
            .iter()
            .any(|(_, name)| name == "slurmctld")
        {
            self.end_jobs();
            // Its own way: the controller hangs when its inner process is signalled first.
            let _ = self.ask("scontrol", &["shutdown"]);
        }
        let start = Instant::now();
        // New ones may appear while old ones end: look again until none is left.
        loop {
            let processes = self.processes()?;
            if processes.is_empty() {
                break;
            }
            if start.elapsed() > 2 * END_LIMIT {
                return Err(format!(
                    "expected no process of the cluster left, got {processes:?}"
                ));
            }
            let is_over = start.elapsed() > END_LIMIT;
            // Those who serve the others end last.
            let is_alone = processes.iter().all(|(_, name)| name == "munged");
            for (process, _) in processes.iter().filter(|_| is_over || is_alone) {
                self.signal(*process, if is_over { "KILL" } else { "TERM" });
            }
            sleep(Duration::from_millis(100));
        }
        if self.short != self.real {
            let _ = fs::remove_file(&self.short);
        }
        Ok(())
    }

    pub(super) fn stop_and_remove(&self) -> Result<(), String> {
        self.stop()?;
        self.remove(&self.real)
    }

    /// Sets the time between SIGTERM and SIGKILL.
    pub(super) fn set_kill_wait(&self, seconds: u64) -> Result<(), String> {
        let file = self.slurm_conf();
        let failed = |error| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(failed)?;
        fs::write(&file, with_kill_wait(&text, seconds)).map_err(failed)?;
        self.ask("scontrol", &["reconfigure"]).map(drop)
    }

    /// Files of the daemons belong to root.
    fn remove(&self, folder: &Path) -> Result<(), String> {
        if !folder.exists() || succeeds(self.as_root("rm").arg("-rf").arg(folder)) {
            return Ok(());
        }
        Err(format!(
            "{} cannot be removed: remove it by hand",
            folder.display()
        ))
    }

    fn end_jobs(&self) {
        let jobs = || self.ask("squeue", &["-h", "-o", "%A"]).unwrap_or_default();
        let start = Instant::now();
        while start.elapsed() < END_LIMIT {
            let list = jobs();
            let list: Vec<&str> = list.split_whitespace().collect();
            if list.is_empty() {
                return;
            }
            // Whatever a job makes of the signal before its end, here it is not waited for.
            let _ = self.ask(
                "scancel",
                &[&["--signal=KILL", "--full"], &list[..]].concat(),
            );
            let _ = self.ask("scancel", &list);
            sleep(Duration::from_millis(300));
        }
    }

    fn processes(&self) -> Result<Vec<(u32, String)>, String> {
        let mut command = self.as_root("sh");
        command
            .args(["-c", PROCESSES, "sh"])
            .arg(&self.real)
            .arg(&self.short)
            .stdin(Stdio::null());
        let output = command
            .output()
            .map_err(|error| process::cannot_start(&command, &error).to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text
            .lines()
            .filter_map(|line| {
                let (process, name) = line.split_once(' ')?;
                Some((process.parse().ok()?, name.to_owned()))
            })
            .collect())
    }

    fn signal(&self, process: u32, signal: &str) {
        // One that has ended meanwhile cannot be signalled, and need not.
        succeeds(
            self.as_root("sh")
                .args(["-c", &format!("kill -{signal} {process}")]),
        );
    }

    fn as_root(&self, name: &str) -> Command {
        packages::as_root(name, self.privilege)
    }
}

/// Whether a daemon may have its own host name and mounts.
pub(super) fn can_unshare() -> bool {
    let mut command = packages::as_root("unshare", Privilege::find());
    succeeds(command.args(["--mount", "--uts", "--propagation", "private", "true"]))
}

/// A program of the system, also where the PATH lacks the folders of root's programs.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let beside =
        ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(|folder| Path::new(folder).join(name));
    probe::program(name).or_else(|| beside.iter().find_map(probe::program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_is_not_there_has_no_processes() {
        assert!(Daemons::of(Path::new("/nonexistent/cluster")).is_err());
    }
}
