"""The speed of training steps and their losses.

In: a framework that has built its network, the job's batches. Out: what one rank measured.
Invariant: a step has ended when its loss is known as a number; the clock starts behind a barrier, after the warm-up. Nothing but
steps is inside the measured time: the batches lie in memory as the framework wants them.
"""

import pathlib
import time


def peak_memory_bytes():
    """The largest memory of this process so far."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def measure(framework, job, warmup_steps, steps):
    """Trains `warmup_steps + steps` steps; seconds are of the last `steps`."""
    batches = [framework.place(images, labels) for images, labels in job.batches]
    losses, step_s = [], []
    start = time.perf_counter()
    for index in range(warmup_steps + steps):
        if index == warmup_steps:
            warmup_s = time.perf_counter() - start
            framework.barrier()
        before = time.perf_counter()
        losses.append(framework.step(batches[index % len(batches)], job.learning_rate))
        if index >= warmup_steps:
            step_s.append(time.perf_counter() - before)
    return {
        "losses": losses,
        "step_s": step_s,
        "seconds": sum(step_s),
        "warmup_s": warmup_s,
        "peak_memory_bytes": peak_memory_bytes(),
    }
