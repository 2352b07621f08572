"""Checks that the trainer computes rightly on this machine's GPU, and compares it with PyTorch.

In: what `cargo xtask gpu-check` packed into this folder, a GPU, PyTorch. Out: tables on stdout, everything in `gpu-check.json`.
Invariant: ends within its time, one program at a time. What fails, crashes or has no time left is a row with the reason; the file is
whole after every part, and so is the archive of compiled kernels, which another start uses.
Exit codes: 0 all that was measured is right, 1 something is wrong or broke off, 3 there is no GPU.

    ./gpu-check.sh [--quick] [--only PARTS] [--output FILE.json] [--cache FILE.tar]
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import time

import arithmetic
import cache
import peer
import place
import processes
import table

# Seconds: of everything, and of one program of each kind.
LIMITS = {"deadline": 470, "peaks": 60, "verify": 90, "learning": 90, "bench": 90, "pytorch": 40, "pair": 60}
QUICK_LIMITS = {**LIMITS, "deadline": 225, "verify": 60}
# A part with less time left does not begin.
LEAST_S = 20
# Checks of `trainer verify` by part and number format; those of small worth come last.
STEPS = "known-answer,golden,ten-steps"
VERIFIED = {
    "f32": ("f32", STEPS),
    "bf16": ("bf16", f"{STEPS},ranks,checkpoints"),
    "f16": ("f16", f"{STEPS},ranks,checkpoints"),
    "learning": ("bf16", "learning"),
}
REST = ("f32", "ranks,nccl,checkpoints,memory")
NO_GPU = 3
ROUNDS = 2
# Beyond which a throughput counts for nothing: the programs did not do the same.
LOSSES_OFF = {"f32": 1e-2, "bf16": 5e-2, "f16": 5e-2}
JOBS = [("resnet20", 128), ("resnet20", 1024), ("resnet44", 128), ("resnet44", 1024), ("resnet50", 64)]
PIXELS = {"resnet50": 224}
JOB_PARTS = {f"{model}-{batch}": (model, batch) for model, batch in JOBS}
PARTS = ("peaks", *VERIFIED, *JOB_PARTS, "pair", "rest")
QUICK_PARTS = ("peaks", *VERIFIED, *list(JOB_PARTS)[:2])
LIMIT_HELP = "another limit, " + ", ".join(f"{part}={seconds}" for part, seconds in LIMITS.items())


class Check:
    """One run of all parts."""

    def __init__(self, options, folder, scratch):
        self.options, self.folder, self.scratch = options, folder, scratch
        self.start, self.limits = time.monotonic(), limits(options)
        self.parts = options.only.split(",") if options.only else list(QUICK_PARTS if options.quick else PARTS)
        self.result = {"schema": "lockstep.gpu-check/1", "quick": options.quick, "verify": [], "rows": []}
        self.result.update(gpu=None, peaks={}, pytorch=None, trainer=None, kernels=[], pairs=[], gaps=[], commands=[])
        self.is_wrong = False

    def left(self):
        """Seconds until the deadline."""
        return self.limits["deadline"] - (time.monotonic() - self.start)

    def say(self, text):
        """Progress, on stderr: stdout is for the tables."""
        print(f"{time.monotonic() - self.start:6.1f} s  {text}", file=sys.stderr, flush=True)

    def gap(self, what, why, is_wrong=False):
        """Notes what is missing."""
        self.is_wrong |= is_wrong
        self.result["gaps"].append([what, why])
        self.say(f"gap: {what}: {why}")

    def save(self):
        """Writes what is there so far, and the kernels that are."""
        cache.save(self.scratch / "cache", self.options.cache)
        self.result["seconds"] = time.monotonic() - self.start
        path = pathlib.Path(self.options.output)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self.result, indent=1))
        partial.rename(path)

    def trainer(self, words, limit_s, **variables):
        """Runs our program."""
        words = [str(self.program), *map(str, words)]
        self.result["commands"].append(words[1:])
        return processes.run(words, min(limit_s, self.left()), {**self.environment, **variables})

    def prepare(self):
        """The program and the GPU; whether there is one."""
        self.program = place.trainer(self.folder, self.scratch)
        self.environment, self.result["cuda"] = place.trainer_environment(self.folder, self.scratch)
        # Where the program keeps compiled kernels.
        self.environment["XDG_CACHE_HOME"] = str(self.scratch / "cache")
        self.result["cache_files"] = cache.load(self.options.cache, self.scratch / "cache")
        version = self.trainer(["--version"], 60)
        if version.code != 0:
            self.gap("the program", version.reason, is_wrong=True)
            return False
        self.result["trainer"] = version.output.strip()
        self.result["gpu"], reason = place.gpu_facts()
        if reason:
            self.gap("all", reason)
        return reason is None

    def peaks(self):
        """What the machine can do at most."""
        script = str(self.folder / "pytorch_gpu.py")
        found = processes.run([sys.executable, "-B", script], min(self.limits["peaks"], self.left()))
        try:
            self.result.update(found.last_json("pytorch", "peaks"))
        except processes.Silent as silent:
            self.gap("the machine's own rates", str(silent))
            return
        self.result["gpu_after_load"], _ = place.gpu_facts()

    def verify(self, part, dtype, checks):
        """Whether the trainer computes rightly."""
        output = self.scratch / f"verify-{part}.json"
        words = ["verify", "--device", "cuda", "--dtype", dtype, "--only", checks, "--output", output]
        words += ["--quick"] if self.options.quick else []
        data = self.folder / "data"
        words += ["--data-dir", data] if data.is_dir() else []
        ended = self.trainer(words, self.limits.get(part, self.limits["verify"]))
        if not output.exists():
            # A number format that this program does not have on a GPU is refused as wrong usage.
            self.gap(f"verify {part}", ended.reason, is_wrong=ended.code != 2)
            return
        verification = json.loads(output.read_text())
        self.is_wrong |= verification["verdict"] == "FAIL"
        known = next((one for one in self.result["verify"] if one["dtype"] == verification["dtype"]), None)
        if known:
            known["checks"] += verification["checks"]
        else:
            self.result["verify"].append(verification)

    def pair(self):
        """Two processes on this GPU: sums by NCCL have the bits of sums by MPI, since two numbers have one sum."""
        losses = {}
        for reduction in ("mpi", "nccl"):
            words = ["launch", "-n", 2, "--", *bench("resnet20", 128, "f32", "cuda:0"), "--update", "host", "--reduction", reduction]
            # Before 2.30 NCCL refuses a second rank on a GPU.
            ended = self.trainer([*words, "--steps", 20, "--json"], self.limits["pair"], NCCL_MULTI_RANK_GPU_ENABLE="1")
            try:
                facts = ended.last_json("images_per_second", "losses")
            except processes.Silent as silent:
                self.gap(f"two processes, --reduction {reduction}", str(silent))
                continue
            losses[reduction] = facts["losses"]
            self.result["pairs"].append({"reduction": reduction, "images_per_second": facts["images_per_second"]})
        if len(losses) == 2 and losses["mpi"] != losses["nccl"]:
            self.gap("two processes", f"losses of MPI and NCCL differ: {losses}", is_wrong=True)

    def ours(self, model, batch, dtype, job):
        """One block of our steps; the first of a job writes it for PyTorch."""
        words = [*bench(model, batch, dtype), "--steps", 40, "--warmup-steps", 10, "--json"]
        words += ["--export-job", job] if not job.exists() else []
        ended = self.trainer(words, self.limits["bench"])
        facts = ended.last_json("images_per_second", "losses")
        # Over all steps, as in PyTorch: results come a step late, so one step's time means little.
        step_s = batch / facts["images_per_second"]
        return {"step_s": [step_s], "losses": facts["losses"], "memory_bytes": facts.get("device_memory_bytes"), "bench": facts}

    def measure(self, model, batch):
        """All programs in turn, twice, on one job."""
        job = self.scratch / f"job-{model}-{batch}"
        blocks, reasons = {}, {}

        def attempt(contender, dtype, work):
            if (contender, dtype) in reasons:
                return
            if self.left() < 5:
                reasons[contender, dtype] = "no time left"
                return
            self.say(f"{model} {batch} {dtype} {contender}")
            try:
                block = work()
                blocks.setdefault((contender, dtype), []).append(block)
            except processes.Silent as silent:
                reasons[contender, dtype] = str(silent)

        with contextlib.ExitStack() as stack:
            rival = None
            for _ in range(ROUNDS):
                for dtype in ("f32", "bf16", "f16"):
                    attempt("lockstep", dtype, lambda dtype=dtype: self.ours(model, batch, dtype, job))
                if rival is None and "PyTorch" not in reasons and job.exists():
                    try:
                        rival = stack.enter_context(contextlib.closing(peer.Peer(job, min(60, self.left()))))
                    except processes.Silent as silent:
                        reasons["PyTorch"] = str(silent)
                for way, dtype in ways(rival):
                    ask = {"kind": "measure", "name": way, "warmup_steps": 10, "steps": 40, "blocks": 3}
                    limit_s = min(self.limits["pytorch"], self.left())
                    attempt(f"PyTorch, {way}", dtype, lambda ask=ask, limit_s=limit_s: rival.ask(limit_s, **ask))
            of_job = rows(model, batch, blocks, reasons)
            self.result["rows"] += of_job
            if disagrees(of_job):
                self.gap(f"losses, {model} {batch}", "no row of PyTorch in f32 has ours", is_wrong=True)
            if "PyTorch" in reasons or not job.exists():
                self.gap(f"PyTorch, {model} {batch}", reasons.get("PyTorch", "no job was written"))
            if (model, batch) == JOBS[0]:
                self.our_kernels(blocks)
                if rival:
                    self.profile(rival)

    def profile(self, rival):
        """Kernels of PyTorch's step, by its profiler."""
        for way in ("eager, TF32", "AMP"):
            try:
                found = rival.ask(min(self.limits["pytorch"], self.left()), kind="profile", name=way)
                self.result["kernels"].append({"program": f"PyTorch, {way}", **found})
            except processes.Silent as silent:
                self.gap(f"kernels of PyTorch, {way}", str(silent))

    def our_kernels(self, blocks):
        """Kernels of our step, which `bench` observes."""
        for dtype in ("f32", "bf16"):
            kernels = blocks.get(("lockstep", dtype), [{}])[-1].get("bench", {}).get("device_kernels")
            if kernels:
                self.result["kernels"].append({"program": f"lockstep {dtype}", **arithmetic.kernels(kernels)})
            else:
                self.gap(f"kernels of lockstep {dtype}", "bench reported none")


def limits(options):
    """Seconds by part, as the command line changes them."""
    known = dict(QUICK_LIMITS if options.quick else LIMITS)
    return {**known, **dict(options.limit)}


def limit(text):
    """`PART=SECONDS` of the command line."""
    part, _, seconds = text.partition("=")
    if part not in LIMITS or not seconds.isdigit():
        raise argparse.ArgumentTypeError(f"expected PART=SECONDS with one of {', '.join(LIMITS)}, got {text!r}")
    return part, int(seconds)


def parts(text):
    """Parts of the command line."""
    unknown = [part for part in text.split(",") if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(PARTS)}, got {','.join(unknown)!r}")
    return text


def ways(rival):
    """PyTorch's ways with their number formats."""
    return [(way, "f32" if "TF32" in way else "bf16") for way in rival.about["ways"]] if rival else []


def bench(model, batch, dtype, device="cuda"):
    """The words of our program for a job."""
    words = ["bench", "--device", device, "--model", model, "--batch-size-per-rank", batch, "--dtype", dtype]
    return words + (["--image-size", PIXELS[model], "--num-classes", 1000] if model in PIXELS else [])


def rows(model, batch, blocks, reasons):
    """One row a program and number format."""
    expected = blocks.get(("lockstep", "f32"), [{}])[0].get("losses", [])
    result = []
    for key in [*blocks, *(key for key in reasons if isinstance(key, tuple) and key not in blocks)]:
        contender, dtype = key
        row = {"model": model, "batch": batch, "dtype": dtype, "contender": contender}
        if key not in blocks:
            result.append({**row, "gap": reasons[key]})
            continue
        measured = blocks[key]
        step_s = arithmetic.median([second for block in measured for second in block["step_s"]])
        off = arithmetic.losses_off(expected, measured[0]["losses"])
        row.update(step_s=step_s, images_per_second=batch / step_s, blocks=measured)
        row.update(memory_bytes=measured[0]["memory_bytes"], losses_off=off)
        row["counts"] = off is not None and off <= LOSSES_OFF[dtype]
        result.append(row)
    return result


def disagrees(of_job):
    """Whether PyTorch has computed losses of a job in f32, and nowhere ours."""
    pytorch = [row for row in of_job if row["contender"] != "lockstep" and row["dtype"] == "f32"]
    compared = [row["counts"] for row in pytorch if row.get("losses_off") is not None]
    return bool(compared) and not any(compared)


def completed(result):
    """Adds what follows from the measurements."""
    for row in result["rows"]:
        if not row.get("gap") and row["model"] not in PIXELS:
            depth = int(row["model"].removeprefix("resnet"))
            row.update(arithmetic.shares(depth, row["batch"], row["dtype"], row["step_s"], result["peaks"]))
    arithmetic.ratios(result["rows"])


def run(check):
    """All parts; the exit code."""
    if not check.prepare():
        return 1 if check.is_wrong else NO_GPU
    work = {"peaks": check.peaks, "pair": check.pair, "rest": lambda: check.verify("rest", *REST)}
    work.update({part: lambda part=part: check.verify(part, *VERIFIED[part]) for part in VERIFIED})
    work.update({part: lambda part=part: check.measure(*JOB_PARTS[part]) for part in JOB_PARTS})
    for part in PARTS:
        if part not in check.parts:
            continue
        if check.left() < LEAST_S:
            check.gap(part, "no time left")
            continue
        check.say(part)
        work[part]()
        check.save()
    return 1 if check.is_wrong else 0


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under four minutes: only ResNet-20")
    parser.add_argument("--output", default="gpu-check.json", help="file of the result (default gpu-check.json)")
    parser.add_argument("--only", type=parts, metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--limit", type=limit, action="append", default=[], metavar="PART=SECONDS", help=LIMIT_HELP)
    parser.add_argument("--cache", default="gpu-check-cache.tar", help="file of our compiled kernels (default gpu-check-cache.tar)")
    options = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        check = Check(options, folder, pathlib.Path(scratch))
        code = run(check)
    completed(check.result)
    check.result["exit_code"] = code
    check.save()
    print(table.markdown(check.result))
    if code == NO_GPU:
        print("gpu-check: no GPU on this machine: nothing was measured", flush=True)
    else:
        print(f"gpu-check: {'FAILED' if code else 'passed'} in {check.result['seconds']:.0f} s, all of it in {options.output}")
    sys.exit(code)


if __name__ == "__main__":
    main()
