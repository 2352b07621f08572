"""The number of this rank, and how the frameworks find the others.

In: the command line and the launcher's variables. Out: [`Place`], the environment that each framework reads.
Invariant: nothing of a framework is imported here: threads and roles must be set before. Processes are bound to cores by
any launcher.
"""

import json
import os
from typing import NamedTuple

# Open MPI, MPICH and relatives, Slurm; the first is for launchers without a variable.
RANK_VARIABLES = ("LOCKSTEP_PEER_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


class Place(NamedTuple):
    """A process of the job. `addresses` has one `host:port` of each rank; the first is also where all meet. `setting` has the options
    that are not the framework's defaults, by name."""

    rank: int
    ranks: int
    threads: int
    addresses: list
    role: str
    setting: dict

    @property
    def root(self):
        """Host and port of the first address."""
        host, port = self.addresses[0].rsplit(":", 1)
        return host, int(port)


def own_rank(ranks):
    """This process's number, from the launcher."""
    for name in RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    if ranks == 1:
        return 0
    raise SystemExit(f"ranks: expected one of {', '.join(RANK_VARIABLES)} to be set among {ranks} ranks, found none")


def of_setting(setting):
    """The variables of those options that a framework reads from its environment."""
    variables = {}
    if setting.get("affinity") == "bound":
        variables.update(OMP_PROC_BIND="close", OMP_PLACES="cores", KMP_AFFINITY="granularity=fine,compact,1,0")
    if setting.get("xla") == "auto":
        variables.update(TF_XLA_FLAGS="--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit")
    if setting.get("onednn") == "off":
        variables.update(TF_ENABLE_ONEDNN_OPTS="0")
    if setting.get("fast-math") == "on":
        variables.update(XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    if "fusion-mib" in setting:
        variables.update(HOROVOD_FUSION_THRESHOLD=str(int(setting["fusion-mib"]) << 20))
    if "cycle-ms" in setting:
        variables.update(HOROVOD_CYCLE_TIME=setting["cycle-ms"])
    return variables


def set_environment(place):
    """Sets the number of threads and the rank in the variables of every framework, before their import."""
    threads = str(place.threads)
    # MXNet's engine runs one operation at a time; inside it OpenMP has its threads.
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    variables = dict(counts, MXNET_CPU_WORKER_NTHREADS="1", TF_CPP_MIN_LOG_LEVEL="2")
    variables.update(of_setting(place.setting))
    if place.ranks > 1:
        host, port = place.root
        # PyTorch.
        variables.update(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(place.rank), WORLD_SIZE=str(place.ranks))
        if host == "127.0.0.1":
            variables.update(GLOO_SOCKET_IFNAME="lo", DMLC_NODE_HOST=host)
        # TensorFlow.
        task = {"type": "worker", "index": place.rank}
        variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": place.addresses}, "task": task})
        # MXNet: a scheduler and one server besides the workers.
        variables.update(DMLC_PS_ROOT_URI=host, DMLC_PS_ROOT_PORT=str(port), DMLC_ROLE=place.role)
        variables.update(DMLC_NUM_WORKER=str(place.ranks), DMLC_NUM_SERVER="1")
    os.environ.update(variables)
