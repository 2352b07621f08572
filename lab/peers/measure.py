"""The speed of training steps and their losses.

In: a framework that has built its network, the job's batches. Out: what one rank measured.
Invariant: a step has ended when its loss is known as a number; the clock starts behind a barrier, after the warm-up. Nothing but
steps is inside the measured time: the batches lie in memory as the framework wants them.
"""

import pathlib
import time


def memory_bytes(which):
    """The memory of this process: `VmRSS` now, `VmHWM` at its largest so far."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
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
            begin_unix_s = time.time()
        before = time.perf_counter()
        losses.append(framework.step(batches[index % len(batches)], job.learning_rate))
        if index >= warmup_steps:
            step_s.append(time.perf_counter() - before)
    return {
        "losses": losses,
        "step_s": step_s,
        "seconds": sum(step_s),
        "warmup_s": warmup_s,
        "measured_unix_s": [begin_unix_s, time.time()],
        "peak_memory_bytes": memory_bytes("VmHWM"),
    }
