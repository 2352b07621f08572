"""PyTorch's steps on one GPU, in several ways, on demand.

In: a job of `trainer bench --export-job`; one JSON request a line on stdin. Out: one JSON answer a line on stdout.
Invariant: every way begins with the job's weights and takes its batches in turn; they lie on the GPU before a clock starts, and
no step waits for its loss: the clock is read behind a synchronisation after many steps.
"""

import argparse
import collections
import contextlib
import json
import os
import sys
import time
from typing import NamedTuple

import torch
import torch.nn.functional as F

KEPT_LOSSES = 10
PROFILED_STEPS = 5


class Way(NamedTuple):
    """`is_captured`: the whole step is replayed as one CUDA graph."""

    dtype: str
    is_captured: bool


WAYS = {
    "eager, TF32": Way("f32", False),
    "CUDA graph, TF32": Way("f32", True),
    "AMP": Way("bf16", False),
    "AMP, CUDA graph": Way("bf16", True),
}


class Training:
    """A network in training in one way."""

    def __init__(self, job, way, device):
        import pytorch_imagenet
        import resnet

        self.way, self.device = way, device
        build = pytorch_imagenet.ResNet if job.is_imagenet else resnet.of_depth
        model = build(job.depth, job.num_classes)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in job.weights.items()}, strict=False)
        self.model = model.to(device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=job.learning_rate,
            momentum=job.momentum,
            weight_decay=job.weight_decay,
            fused=True,
        )
        self.batches = [
            (
                torch.from_numpy(images).permute(0, 3, 1, 2).to(device),
                torch.from_numpy(labels).long().to(device),
            )
            for images, labels in job.batches
        ]
        self.num_steps, self.losses, self.memory_bytes = 0, [], None
        if way.is_captured:
            self.capture()

    def eager(self, images, labels):
        """One update; the loss stays on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def precision(self):
        """Autocast where it is wanted; its cache of weights must not outlive a graph's capture."""
        if self.way.dtype == "f32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, torch.bfloat16, cache_enabled=not self.way.is_captured)

    def capture(self):
        """Records a step; the steps before it, which a capture needs, are undone."""
        self.images, self.labels = (tensor.clone() for tensor in self.batches[0])
        before = [tensor.clone() for tensor in self.model.state_dict().values()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.eager(self.images, self.labels)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.eager(self.images, self.labels)
        with torch.no_grad():
            for tensor, value in zip(self.model.state_dict().values(), before):
                tensor.copy_(value)
            for state in self.optimizer.state.values():
                state["momentum_buffer"].zero_()

    def step(self):
        """The next step."""
        images, labels = self.batches[self.num_steps % len(self.batches)]
        self.num_steps += 1
        if self.way.is_captured:
            self.images.copy_(images)
            self.labels.copy_(labels)
            self.graph.replay()
            loss = self.loss
        else:
            loss = self.eager(images, labels)
        if len(self.losses) < KEPT_LOSSES:
            self.losses.append(loss.item())


def synchronize(device):
    """Waits until all is computed."""
    if device == "cuda":
        torch.cuda.synchronize()


class Server:
    """Answers requests; what was built for one is kept for the next."""

    def __init__(self, directory, device):
        import job

        self.job, self.device, self.trainings = job.read(directory, 0), device, {}
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True

    def training(self, name):
        """The training of a way, and the memory that was taken before it."""
        if name not in self.trainings:
            self.trainings[name] = Training(self.job, WAYS[name], self.device)
        return self.trainings[name]

    def measure(self, name, warmup_steps, steps, blocks):
        """Seconds of a step in each block, the first losses, memory."""
        is_new = name not in self.trainings and self.device == "cuda"
        if is_new:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_reserved()
        training = self.training(name)
        for _ in range(warmup_steps):
            training.step()
        synchronize(self.device)
        step_s = []
        for _ in range(blocks):
            start = time.perf_counter()
            for _ in range(steps):
                training.step()
            synchronize(self.device)
            step_s.append((time.perf_counter() - start) / steps)
        if is_new:
            training.memory_bytes = torch.cuda.max_memory_reserved() - before
        return {"step_s": step_s, "losses": training.losses, "memory_bytes": training.memory_bytes}

    def profile(self, name):
        """Kernel launches of a step and the kernels that take longest."""
        training = self.training(name)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        training.step()
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(PROFILED_STEPS):
                training.step()
            synchronize(self.device)
        seconds, launches = collections.Counter(), 0
        for event in profile.events():
            is_kernel = str(event.device_type).endswith("CUDA") and not event.name.lower().startswith(("memcpy", "memset"))
            if is_kernel:
                launches += 1
                seconds[event.name[:60]] += event.time_range.elapsed_us()
        total = sum(seconds.values()) or 1
        longest = [(kernel, time_us / total) for kernel, time_us in seconds.most_common(5)]
        kernel_s = sum(seconds.values()) / 1e6 / PROFILED_STEPS
        return {"launches_per_step": launches / PROFILED_STEPS, "longest": longest, "kernel_s": kernel_s}

    def answer(self, request):
        """One request by its kind."""
        kind = request.pop("kind")
        if kind == "measure":
            return self.measure(**request)
        if kind == "profile":
            return self.profile(**request)
        raise ValueError(f"kind: expected measure or profile, got {kind}")


def best_seconds(work, repetitions=10):
    """The median time of some work on the GPU, after three rounds of warm-up."""
    times = []
    for index in range(3 + repetitions):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        if index >= 3:
            times.append(start.elapsed_time(stop) / 1e3)
    return sorted(times)[len(times) // 2]


def peaks():
    """The machine's own rates: a copy, counting bytes read and written, and products of random matrices."""
    torch.backends.cuda.matmul.allow_tf32 = True
    source = torch.rand(2**28, device="cuda")
    target = torch.empty_like(source)
    rates = {"copy_bytes_per_s": 2 * source.nbytes / best_seconds(lambda: target.copy_(source))}
    del source, target
    size = 8192
    for name, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        rates[f"{name}_flops"] = 2 * size**3 / best_seconds(lambda: a @ b)
    return rates


def main():
    """Answers until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", help="directory of trainer bench --export-job; without it the rates of the machine are measured")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    # Libraries may print; answers go where they cannot.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not options.job:
        print(json.dumps({"pytorch": torch.__version__, "peaks": peaks()}), file=answers, flush=True)
        return
    server = Server(options.job, options.device)
    print(json.dumps({"pytorch": torch.__version__, "ways": list(WAYS)}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = server.answer(json.loads(line))
        except Exception as error:  # A failure is reported; other ways continue.
            answer = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
