//! The commands that make emulated hosts, and the files that programs on them see.
//!
//! In: numbers of hosts, from 1. Out: command lines; files below /etc/netns and /run.
//! Invariant: pure, except for writing those files; a blank separates the words of a command line.
//! Source: ip-netns(8), which binds /etc/netns/NAME/* over /etc/*.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::failure::{Outcome, at};
use crate::process;
use crate::run_directory;

const PREFIX: &str = "lockstep-";
pub(super) const SWITCH: &str = "lockstep-switch";
pub(super) const DEVICE: &str = "eth0";
pub(super) const NETWORK: &str = "10.98.0.0/24";

/// Returns the name of a host.
pub(super) fn name(host: usize) -> String {
    format!("h{host}")
}

fn space(host: usize) -> String {
    format!("{PREFIX}{}", name(host))
}

/// Returns the address of a host, from 1.
pub fn address(host: usize) -> String {
    format!("10.98.0.{host}")
}

/// Returns the names of all existing namespaces with our prefix.
pub(super) fn spaces() -> Vec<String> {
    let list = process::answer("ip", &["netns", "list"]).unwrap_or_default();
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| name.starts_with(PREFIX))
        .map(str::to_owned)
        .collect()
}

/// Returns the command line inside a host.
pub(super) fn within(host: usize, line: &str) -> String {
    format!("ip netns exec {} {line}", space(host))
}

/// Returns the command lines that make a switch in its own namespace, and hosts joined to it, apart
/// from the machine's network.
pub(super) fn making(count: usize) -> Vec<String> {
    let mut lines = vec![
        format!("ip netns add {SWITCH}"),
        format!("ip -n {SWITCH} link set lo up"),
        format!("ip -n {SWITCH} link add br0 type bridge"),
        format!("ip -n {SWITCH} link set br0 up"),
    ];
    for host in 1..=count {
        let space = space(host);
        let address = address(host);
        lines.extend([
            format!("ip netns add {space}"),
            format!("ip -n {space} link set lo up"),
            format!("ip -n {space} link add {DEVICE} type veth peer name p{host} netns {SWITCH}"),
            format!("ip -n {SWITCH} link set p{host} master br0 up"),
            format!("ip -n {space} addr add {address}/24 dev {DEVICE}"),
            format!("ip -n {space} link set {DEVICE} up"),
        ]);
    }
    lines
}

/// Returns the folder of the files that a host sees in /etc.
pub(super) fn names_folder(space: &str) -> PathBuf {
    Path::new("/etc/netns").join(space)
}

/// Writes /etc/hosts of a host with the names of all hosts.
pub(super) fn write_names(host: usize, count: usize) -> Outcome {
    let lines = (1..=count).map(|other| format!("{} {}\n", address(other), name(other)));
    let text = format!("127.0.0.1 localhost\n{}", lines.collect::<String>());
    run_directory::write(&names_folder(&space(host)).join("hosts"), &text)
}

/// Returns the folder of the agent.
pub(super) fn folder() -> PathBuf {
    PathBuf::from("/run/lockstep-hosts")
}

pub(super) fn agent() -> PathBuf {
    folder().join("agent")
}

/// Returns the agent that mpirun calls in place of ssh: runs a command on a host, with its name and
/// its own shared memory.
fn agent_text(cores: &[String]) -> String {
    let cases: String = cores
        .iter()
        .enumerate()
        .map(|(index, list)| format!("    {}) cores='taskset -c {list}' ;;\n", name(index + 1)))
        .collect();
    format!(
        r#"#!/bin/sh
# Written by `trainer hosts`. agent [-x …] HOST COMMAND…: as ssh would, the words are one line for a shell;
# agent HOST --exec PROGRAM WORDS…: as they are.
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
run='exec sh -c "$*"'
[ "${{1:-}}" = --exec ] && {{ run='exec "$@"'; shift; }}
# Hosts have separate cores while there are enough.
cores=
case $host in
{cases}esac
exec $cores ip netns exec "{PREFIX}$host" unshare --uts --mount --propagation private \
    sh -c 'hostname "$1"; mount -t tmpfs -o mode=1777 shm /dev/shm; shift; '"$run" sh "$host" "$@"
"#
    )
}

/// Writes the agent; `cores` is empty or has a list of CPUs for each host.
pub(super) fn write_agent(cores: &[String]) -> Outcome {
    let file = agent();
    run_directory::write(&file, &agent_text(cores))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).map_err(at(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_joined_to_the_switch_and_has_an_address() {
        let lines = making(3);
        for host in 1..=3 {
            assert!(
                lines.contains(&format!(
                    "ip -n lockstep-switch link set p{host} master br0 up"
                )),
                "{lines:?}"
            );
            assert!(lines.contains(&format!(
                "ip -n lockstep-h{host} addr add 10.98.0.{host}/24 dev eth0"
            )));
        }
        let has_namespace =
            |line: &String| line.contains("netns add lockstep-") || line.contains("-n lockstep-");
        assert!(
            lines.iter().all(has_namespace),
            "only our own namespaces are touched: {lines:?}"
        );
    }

    #[test]
    fn the_agent_is_a_shell_script_that_gives_hosts_their_cores() {
        let text = agent_text(&["0".to_owned(), "1".to_owned()]);
        assert!(text.contains("    h2) cores='taskset -c 1' ;;\n"), "{text}");
        for text in [text, agent_text(&[])] {
            let output = std::process::Command::new("sh")
                .args(["-n", "-c", &text])
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
