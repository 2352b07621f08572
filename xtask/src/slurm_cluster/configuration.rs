//! The files that make three daemons a cluster of two nodes.
//!
//! In: the folder, free ports. Out: `slurm.conf` and what stands beside it.
//! Invariant: every path is in the folder, every address is the loopback's, no name needs to be resolved.
//! Source: slurm.conf(5), mpi.conf(5), cgroup.conf(5) of Slurm 22.05.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The nodes, each with its own daemon.
pub(super) const NODES: [&str; 2] = ["n1", "n2"];
/// Below the range from which the system takes ports for outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
const CPUS_PER_NODE: usize = 2;

/// The host name that the controller's daemon runs under: one that is known everywhere, unlike the machine's own.
pub(super) const CONTROLLER: &str = "localhost";

/// Seconds that a job has between SIGTERM and SIGKILL, unless told otherwise.
const KILL_WAIT_S: u64 = 20;

/// What is decided once about a cluster.
pub(super) struct Configuration {
    folder: PathBuf,
    /// The controller's, then the nodes'.
    ports: Vec<u16>,
}

impl Configuration {
    pub(super) fn choose(folder: &Path) -> Result<Self, String> {
        Ok(Configuration {
            folder: folder.to_owned(),
            ports: free_ports(1 + NODES.len())?,
        })
    }

    /// Makes the folders and files of the cluster.
    pub(super) fn write(&self) -> Result<(), String> {
        for name in ["state", "log", "run"] {
            self.make_folder(name, 0o755)?;
        }
        self.write_file("slurm.conf", &self.slurm_conf())?;
        // slurmd looks for control groups even when nothing uses them, and fails where none are mounted; a version that is named is
        // not looked for.
        self.write_file("cgroup.conf", "CgroupPlugin=cgroup/v1\n")?;
        for node in NODES {
            self.make_folder(node, 0o755)?;
            self.make_folder(&format!("spool.{node}"), 0o755)?;
            self.make_folder(&format!("temporary.{node}"), 0o1777)?;
            for file in ["slurm.conf", "cgroup.conf"] {
                let link = self.folder.join(node).join(file);
                symlink(Path::new("..").join(file), &link)
                    .map_err(|error| format!("{}: {error}", link.display()))?;
            }
            // Two daemons on one machine would make the same folder for a step: each has its own place, found beside the
            // slurm.conf that its own SLURM_CONF names.
            let folder = self.folder.join(format!("temporary.{node}"));
            self.write_file(
                &format!("{node}/mpi.conf"),
                &format!("PMIxCliTmpDirBase={}\n", folder.display()),
            )?;
        }
        Ok(())
    }

    fn make_folder(&self, name: &str, mode: u32) -> Result<(), String> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder)
            .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)))
            .map_err(|error| format!("{}: {error}", folder.display()))
    }

    fn write_file(&self, name: &str, text: &str) -> Result<(), String> {
        let file = self.folder.join(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn slurm_conf(&self) -> String {
        let folder = self.folder.display();
        let mut text = format!(
            "ClusterName=lockstep\n\
             SlurmctldHost={CONTROLLER}(127.0.0.1)\n\
             SlurmctldPort={port}\n\
             SlurmUser=root\n\
             SlurmdUser=root\n\
             AuthType=auth/munge\n\
             CredType=cred/munge\n\
             # A requeued job is held until its old credential has expired: 120 s, unless told.\n\
             AuthInfo=socket={folder}/run/munge.socket,cred_expire=5\n\
             StateSaveLocation={folder}/state\n\
             SlurmdSpoolDir={folder}/spool.%n\n\
             SlurmctldPidFile={folder}/run/slurmctld.pid\n\
             SlurmdPidFile={folder}/run/slurmd.%n.pid\n\
             SlurmctldLogFile={folder}/log/slurmctld.log\n\
             SlurmdLogFile={folder}/log/slurmd.%n.log\n\
             # No control groups, no systemd, no database.\n\
             ProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\n\
             JobCompType=jobcomp/none\n\
             SwitchType=switch/none\n\
             MpiDefault=none\n\
             SchedulerType=sched/backfill\n\
             SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0\n\
             SelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\n\
             # A node may claim more processors than there are.\n\
             SlurmdParameters=config_overrides\n\
             ReturnToService=2\n\
             MailProg=/bin/true\n\
             PropagateResourceLimits=NONE\n\
             JobRequeue=1\n\
             PreemptType=preempt/partition_prio\n\
             PreemptMode=REQUEUE\n\
             {}\n\
             InactiveLimit=0\n\
             MinJobAge=3600\n\
             SlurmctldTimeout=60\n\
             SlurmdTimeout=120\n\
             MessageTimeout=60\n\
             NodeName=DEFAULT CPUs={CPUS_PER_NODE} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS_PER_NODE} ThreadsPerCore=1 \
             RealMemory=1000 State=UNKNOWN\n",
            kill_wait(KILL_WAIT_S),
            port = self.ports[0],
        );
        for (node, port) in NODES.iter().zip(&self.ports[1..]) {
            text.push_str(&format!(
                "NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port}\n"
            ));
        }
        text.push_str(
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30\n\
             PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF\n",
        );
        text
    }
}

fn kill_wait(seconds: u64) -> String {
    format!("KillWait={seconds}")
}

/// The configuration with this time between SIGTERM and SIGKILL.
pub(super) fn with_kill_wait(slurm_conf: &str, seconds: u64) -> String {
    slurm_conf.replace(&kill_wait(KILL_WAIT_S), &kill_wait(seconds))
}

fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    // Clusters started at the same time look at different places first.
    let length = PORTS.end - PORTS.start;
    let first = (std::process::id().wrapping_mul(13) % u32::from(length)) as u16;
    let mut listeners = Vec::new();
    for offset in 0..length {
        let port = PORTS.start + (first + offset) % length;
        // Held until all are found, so that none is found twice.
        if let Ok(listener) = TcpListener::bind(("0.0.0.0", port)) {
            listeners.push((port, listener));
        }
        if listeners.len() == count {
            return Ok(listeners.into_iter().map(|(port, _)| port).collect());
        }
    }
    Err(format!(
        "cluster: expected {count} free TCP ports in {PORTS:?}, got {}",
        listeners.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Configuration {
        Configuration {
            folder: "/f".into(),
            ports: vec![1, 2, 3],
        }
    }

    #[test]
    fn ports_are_free_and_different() {
        let ports = free_ports(3).unwrap();
        let _listeners: Vec<TcpListener> = ports
            .iter()
            .map(|port| TcpListener::bind(("0.0.0.0", *port)).unwrap())
            .collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn every_node_has_its_name_and_port_and_no_name_is_resolved() {
        let text = example().slurm_conf();
        assert!(text.contains("SlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n"));
        assert!(text.contains("NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=3\n"));
    }

    #[test]
    fn the_time_before_a_kill_can_be_changed() {
        let text = with_kill_wait(&example().slurm_conf(), 3);
        assert!(
            text.contains("\nKillWait=3\n") && !text.contains("KillWait=20"),
            "{text}"
        );
    }

    #[test]
    fn every_path_is_in_the_folder() {
        let text = example().slurm_conf();
        let paths = text
            .split(['=', ',', '\n', ' '])
            .filter(|word| word.starts_with('/'));
        assert!(
            paths
                .filter(|path| *path != "/bin/true")
                .all(|path| path.starts_with("/f/")),
            "{text}"
        );
    }
}
