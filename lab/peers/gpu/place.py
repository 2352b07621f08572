"""What this machine has: the GPU, CUDA's run-time compiler and headers, our program.

In: the file system, nvidia-smi. Out: facts, and the environment that the trainer needs. Invariant: nothing is changed on the machine.
"""

import glob
import lzma
import os
import pathlib
import site
import sys

import processes

QUERY = (
    "name,driver_version,memory.total,clocks.current.sm,clocks.current.memory,clocks.max.sm,clocks.max.memory,"
    "temperature.gpu,power.draw,power.limit"
)


def gpu_facts():
    """Returns the first GPU of nvidia-smi, or why there is none."""
    asked = processes.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"], 30)
    if asked.code != 0 or not asked.output.strip():
        return None, f"no GPU: nvidia-smi: {asked.reason}"
    return parsed_facts(asked.output), None


def parsed_facts(line):
    """One line of nvidia-smi's answer by the names of the question."""
    values = [value.strip() for value in line.strip().splitlines()[0].split(",")]
    return dict(zip(QUERY.split(","), values))


def cuda_roots():
    """Returns folders that may hold CUDA: named by variables, installed, from PyTorch's wheels; the first complete one counts."""
    facts = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ]
    installed = ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), "/opt/cuda"]
    wheels = []
    for folder in dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path]):
        wheels.extend(sorted(glob.glob(f"{folder}/nvidia/*"), reverse=True))
    return [pathlib.Path(root) for root in facts + installed + wheels]


def libraries(root):
    """The run-time compiler's library below a root."""
    found = []
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
        found.extend(sorted((root / folder).glob("libnvrtc.so*")))
    return found


def has_headers(root):
    """Whether kernels of 16 bits and of matrix units compile with the headers below a root.

    NVRTC also needs `nv/target`, since CUDA 13 in a folder `cccl`, and `crt/mma.h`, which PyTorch's wheels lack.
    """
    include = root / "include"
    has_both = all((include / name).is_file() for name in ("cuda_fp16.h", "crt/mma.h"))
    return has_both and any((include / name).is_file() for name in ("nv/target", "cccl/nv/target"))


def compiler(roots):
    """The root whose headers are there and whole, and the library of the run-time compiler; its own is preferred."""
    whole = [root for root in roots if has_headers(root)]
    both = next((root for root in whole if libraries(root)), None)
    library = next((libraries(root)[0] for root in ([both] if both else roots) if libraries(root)), None)
    return both or next(iter(whole), None), library


def trainer_environment(folder, scratch):
    """The variables that our program needs, and what was found for them."""
    root, library = compiler(cuda_roots())
    variables = dict(os.environ)
    if library:
        # The program asks for the name without a version, which wheels do not have.
        links = scratch / "lib"
        links.mkdir(exist_ok=True)
        link = links / "libnvrtc.so"
        if not link.exists():
            link.symlink_to(library)
        paths = [str(links), str(library.parent), variables.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    if root:
        variables["CUDA_PATH"] = str(root)
    nccl = next((root / "lib" for root in cuda_roots() if (root / "lib/libnccl.so.2").exists()), None)
    mpi = folder / "openmpi"
    added = [path for path in (nccl, mpi / "lib") if path and path.is_dir()]
    if added:
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [variables.get("LD_LIBRARY_PATH"), *map(str, added)]))
    if mpi.is_dir():
        variables.update(of_mpi(mpi, variables.get("PATH", "")))
    stand_ins = folder / "libllvm-absent.so"
    if stand_ins.exists():
        variables["LD_PRELOAD"] = str(stand_ins)
    return variables, {"headers": str(root), "nvrtc": str(library)}


def of_mpi(folder, path):
    """The variables by which Open MPI finds its files, and starts two ranks of root on one GPU."""
    return {
        "PATH": f"{folder}/bin:{path}",
        "OPAL_PREFIX": str(folder),
        "OPAL_BINDIR": f"{folder}/bin",
        "OPAL_LIBDIR": f"{folder}/lib",
        "OPAL_PKGLIBDIR": f"{folder}/components",
        "OPAL_PKGDATADIR": f"{folder}/data",
        "OPAL_SYSCONFDIR": f"{folder}/data",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # A sandbox forbids one process to read another's memory.
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    }


def trainer(folder, scratch):
    """Our program, unpacked."""
    packed, program = folder / "trainer.xz", scratch / "trainer"
    program.write_bytes(lzma.decompress(packed.read_bytes()))
    program.chmod(0o755)
    return program
