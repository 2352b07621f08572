"""Builds Horovod for PyTorch over MPI into the virtual environment whose Python runs this file.

In: a virtual environment with the packages of requirements/pytorch.txt and requirements/horovod.txt; mpicxx and a C++ compiler.
Out: the package `horovod` in it. Exit code 1 with one line on standard error if it cannot be had.
Horovod's last release is older than the PyTorch it meets here: its build files ask for a C++ standard that PyTorch's headers
have left behind, and read from PyTorch whether it has CUDA, which for a build without CUDA is the wrong question.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

VERSION = "0.28.1"

# Files with the C++ standard, and the standard that today's PyTorch headers need.
STANDARD_FILES = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt", "horovod/tensorflow/CMakeLists.txt")
CXX_STANDARD = 20

OPTIONS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
    "HOROVOD_CPU_OPERATIONS": "MPI",
}


def pip(*words, **how):
    """Runs this environment's pip; its complaint is the error."""
    done = subprocess.run([sys.executable, "-m", "pip", *words], text=True, capture_output=True, **how)
    sys.stdout.write(done.stdout)
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        sys.exit("horovod: pip failed: " + (complaints[-1] if complaints else f"exit code {done.returncode}"))


def unpacked_source(folder):
    """Fetches the released source and gives its folder."""
    archive = f"horovod=={VERSION}"
    pip("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder), archive)
    with tarfile.open(next(folder.glob("horovod-*.tar.gz"))) as archive:
        archive.extractall(folder)
    return next(path for path in folder.iterdir() if path.is_dir())


def adapted(source):
    """Changes the build files in place; a file that is not as expected is refused rather than built wrongly."""
    for name in STANDARD_FILES:
        file = source / name
        text, count = re.subn(r"CMAKE_CXX_STANDARD \d+\)", f"CMAKE_CXX_STANDARD {CXX_STANDARD})", file.read_text())
        if count == 0:
            sys.exit(f"horovod: {name} sets no C++ standard: expected the source of {VERSION}")
        file.write_text(text)
    find = source / "cmake/Modules/FindPytorch.cmake"
    # The answers about CUDA and ROCm are replaced where they are read, and again at the end of the
    # module.
    asked = r'string\(TOUPPER "\$\{Pytorch_(CUDA|ROCM)\}" Pytorch_\1\)'
    text, count = re.subn(asked, r'set(Pytorch_\1 "FALSE")', find.read_text())
    end = "mark_as_advanced(Pytorch_INC"
    if count == 0 or end not in text:
        sys.exit(f"horovod: {find.name} reads no answer about CUDA: expected the source of {VERSION}")
    find.write_text(text.replace(end, f"set(Pytorch_CUDA FALSE)\n{end}", 1))


def main():
    if shutil.which("mpicxx") is None:
        sys.exit("horovod: no mpicxx: install the development files of an MPI library")
    environment = dict(os.environ, **OPTIONS)
    # cmake comes as a package of this environment.
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), environment.get("PATH", "")])
    environment.setdefault("MAKEFLAGS", f"-j{os.cpu_count() or 1}")
    environment.setdefault("CXXFLAGS", "-w")
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        source = unpacked_source(pathlib.Path(folder))
        adapted(source)
        pip("install", "--no-build-isolation", "--no-deps", str(source), env=environment)


if __name__ == "__main__":
    main()
