#!/usr/bin/env bash
# Starts and stops a small real Slurm on this machine: a controller and two nodes.
#
# cluster.sh start FOLDER          writes the configuration into FOLDER, starts the daemons
# cluster.sh stop FOLDER           ends all jobs and daemons, also those of an interrupted run
# cluster.sh remove FOLDER         stops, and removes FOLDER
# cluster.sh kill-wait FOLDER S    sets the seconds between SIGTERM and SIGKILL
# cluster.sh lacking FOLDER        prints why no cluster can start on this machine, if so
# cluster.sh name FOLDER           prints FOLDER, or a link to it that is short enough for sockets
#
# Needs root, or sudo without a password. Changes nothing outside FOLDER and touches no other
# cluster: a daemon of this cluster has a file of FOLDER open, a task of a job has FOLDER's
# SLURM_CONF. Source: slurm.conf(5), mpi.conf(5), cgroup.conf(5) of Slurm 22.05; unix(7) for the
# length of a name.
set -Eeuo pipefail
action=$1
[ "$action" != start ] || mkdir -p "$2"
real=$(realpath "$2")
root=()
[ "$(id -u)" = 0 ] || root=(sudo -n)

# The name of a socket has at most 107 bytes, of which Slurm adds about 45.
folder=$real
if [ ${#real} -gt 60 ]; then
    folder=${TMPDIR:-/tmp}/lockstep-$(printf '%s' "$real" | sha256sum | cut -c 1-16)
    [ "$(readlink "$folder")" = "$real" ] || ln -s "$real" "$folder"
fi
export SLURM_CONF=$folder/slurm.conf
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

ask() {
    timeout --kill-after=5 60 "$@"
}

# Prints a free TCP port from $1 on, below the range of outgoing connections.
free_port() {
    local port=$1
    while (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((port + 1)); done
    echo "$port"
}

write_configuration() {
    local ports=() port=$((20000 + $$ * 13 % 9000)) node
    for node in controller n1 n2; do
        port=$(free_port $((port + 1)))
        ports+=("$port")
    done
    mkdir -p state log run
    # A node may claim more CPUs than there are (config_overrides). A requeued job is held until its
    # old credential has expired (cred_expire). No control groups, no systemd, no database.
    cat > slurm.conf << END
ClusterName=lockstep
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/run/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
PropagateResourceLimits=NONE
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
InactiveLimit=0
MinJobAge=3600
SlurmctldTimeout=60
SlurmdTimeout=120
MessageTimeout=60
NodeName=DEFAULT CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=${ports[1]}
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=${ports[2]}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
END
    # slurmd looks for control groups unless a version is named, and fails where none are mounted.
    echo CgroupPlugin=cgroup/v1 > cgroup.conf
    for node in n1 n2; do
        mkdir -p "$node" "spool.$node"
        mkdir -m 1777 -p "temporary.$node"
        ln -sf ../slurm.conf ../cgroup.conf "$node"
        # Both daemons would make the same folder for a step; each reads its own mpi.conf next to
        # its slurm.conf.
        echo "PMIxCliTmpDirBase=$folder/temporary.$node" > "$node/mpi.conf"
    done
}

# Starts a daemon with its own host name and mounts; returns when the daemon is ready.
start_daemon() {
    local conf=$1 host=$2
    "${root[@]}" env SLURM_CONF="$conf" PATH="$PATH" \
        unshare --mount --uts --propagation private sh -c "hostname $host && $3" >> log/start.log 2>&1
}

start() {
    cd "$real"
    write_configuration
    # Its own munged with its own key, so that no other one on this machine is disturbed. A group
    # may write to the folder, which munged refuses without --force.
    (umask 077 && head -c 128 /dev/urandom > run/munge.key)
    munged --force --key-file="$folder/run/munge.key" --socket="$folder/run/munge.socket" \
        --pid-file="$folder/run/munged.pid" --log-file="$folder/run/munged.log" \
        --seed-file="$folder/run/munged.seed" >> log/start.log 2>&1
    start_daemon "$folder/slurm.conf" localhost "exec slurmctld"
    for node in n1 n2; do
        # Open MPI names its shared memory by host and local rank, so each node needs its /dev/shm.
        start_daemon "$folder/$node/slurm.conf" "$node" \
            "mount -t tmpfs -o mode=1777 shm /dev/shm && exec slurmd -N $node"
    done
}

# Prints process and name of the daemons and of the tasks of jobs.
processes() {
    for p in /proc/[0-9]*; do
        read -r comm < "$p/comm" || continue
        case $comm in
            slurmctld | slurmscriptd | slurmd | slurmstepd | munged)
                ls -l "$p/fd" | grep -F -- "-> $1/" > /dev/null || continue
                ;;
            *)
                grep -qz '^SLURMD_NODENAME=' "$p/environ" || continue
                grep -qzF -e "SLURM_CONF=$1/" -e "SLURM_CONF=$2/" "$p/environ" || continue
                ;;
        esac
        echo "${p#/proc/} $comm"
    done 2> /dev/null
    true
}

all_processes() {
    "${root[@]}" bash -c "$(declare -f processes); processes \"\$@\"" bash "$real" "$folder"
}

end_jobs() {
    local jobs
    for _ in {1..30}; do
        jobs=$(ask squeue -h -o %A || true)
        [ -n "$jobs" ] || return 0
        ask scancel --signal=KILL --full $jobs || true
        ask scancel $jobs || true
        sleep 0.3
    done
}

stop() {
    local left tick
    if all_processes | grep slurmctld > /dev/null; then
        end_jobs
        # The controller hangs if its inner process gets a signal first.
        ask scontrol shutdown || true
    fi
    for tick in {1..200}; do
        left=$(all_processes)
        [ -n "$left" ] || break
        if [ "$tick" -gt 100 ]; then
            "${root[@]}" kill -KILL $(cut -d' ' -f1 <<< "$left") 2> /dev/null || true
        elif ! grep -qv munged <<< "$left"; then
            # munged serves the others and ends last.
            "${root[@]}" kill -TERM $(cut -d' ' -f1 <<< "$left") 2> /dev/null || true
        fi
        sleep 0.1
    done
    [ -z "$left" ] || { echo "error: processes of the cluster do not end: $left" >&2; exit 1; }
    [ "$folder" = "$real" ] || rm -f "$folder"
}

lacking() {
    local program
    if ! "${root[@]}" true 2> /dev/null; then
        echo "Slurm's daemons need root: run this as root, or allow sudo without a password"
        return
    fi
    for program in slurmctld slurmd srun sbatch scontrol munged unshare; do
        command -v $program > /dev/null || { echo "no $program: install Slurm and munge, see above" && return; }
    done
    "${root[@]}" unshare --mount --uts --propagation private true 2> /dev/null ||
        echo "two nodes need namespaces of mounts and host names, which this machine forbids"
}

case $action in
    lacking) lacking ;;
    name) echo "$folder" ;;
    start)
        trap 'tail -n 8 "$real"/log/* >&2' ERR
        start
        ;;
    stop) stop ;;
    remove)
        stop
        "${root[@]}" rm -rf "$real"
        ;;
    kill-wait)
        sed -i "s/^KillWait=.*/KillWait=$3/" "$real/slurm.conf"
        ask scontrol reconfigure
        ;;
esac
