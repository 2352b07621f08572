"""The kernels of our step, by Nsight Compute.

In: a command that makes a few steps. Out: launches a step and the kernels that take longest. Invariant: no setting of the GPU is
changed (`--clock-control none`).
"""

import collections
import csv
import io
import shutil

import processes

STEPS = 2
BENCH = ["bench", "--device", "cuda", "--model", "resnet20", "--batch-size-per-rank", "128"]
BENCH += ["--steps", str(STEPS), "--warmup-steps", "0"]
METRIC = "gpu__time_duration.sum"


def kernels(words, environment, limit_s):
    """What was found, or why nothing was."""
    program = shutil.which("ncu")
    if program is None:
        return None, "no ncu (Nsight Compute)"
    if limit_s < 20:
        return None, "no time left"
    command = [program, "--csv", "--metrics", METRIC, "--clock-control", "none", "--target-processes", "all"]
    ended = processes.run(command + words, limit_s, environment)
    if ended.code != 0:
        return None, ended.reason
    return parsed(ended.output)


def parsed(text):
    """Sums Nsight Compute's table, which begins behind whatever the program printed."""
    start = text.find('"ID"')
    if start < 0:
        return None, "ncu told no kernels"
    seconds, launches = collections.Counter(), 0
    for row in csv.DictReader(io.StringIO(text[start:])):
        if row.get("Metric Name") != METRIC:
            continue
        launches += 1
        seconds[row["Kernel Name"][:60]] += float(row["Metric Value"].replace(",", ""))
    if not launches:
        return None, "ncu told no kernels"
    total = sum(seconds.values()) or 1
    longest = [(kernel, time / total) for kernel, time in seconds.most_common(5)]
    return {"launches_per_step": launches / STEPS, "longest": longest}, None
