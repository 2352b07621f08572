"""One rank of a job in one framework: the entry of this folder.

In: a job's directory, how many steps or epochs. Out: `rank-<R>.json` in the output directory, after a measurement as after training.
Invariant: the file is there only if the rank has done all of its work.

    python run.py pytorch --job DIR --output DIR --steps 8 --warmup-steps 2
    python run.py pytorch --job DIR --output DIR --epochs 5 --data-dir IMAGES
"""

import argparse
import importlib
import json
import os
import pathlib

import measure
import ranks

MODULES = {
    "pytorch": "pytorch_eager",
    "horovod": "pytorch_eager",
    "tensorflow": "tensorflow_keras",
    "mxnet": "mxnet_gluon",
    "jax": "jax_xla",
}


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=MODULES)
    parser.add_argument("--job", required=True, help="directory of trainer bench --export-job")
    parser.add_argument("--output", required=True, help="directory of the result")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--rendezvous", default="127.0.0.1:0", help="host:port of each rank, comma-separated")
    parser.add_argument("--setting", action="append", default=[], help="name=option, other than the framework's own default")
    parser.add_argument("--role", choices=["worker", "scheduler", "server"], default="worker", help="of MXNet's processes")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="train on images instead of measuring steps")
    parser.add_argument("--data-dir", help="with --epochs: train/<class>/* and test/<class>/*")
    parser.add_argument("--seed", type=int, default=0, help="with --epochs: of the order and of the augmentation")
    return parser.parse_args()


def write(path, result):
    """Writes JSON into a partial file, then renames it."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(path)


def serve(options, output):
    """MXNet serves inside its import and ends the process there; no other framework has such a role."""
    try:
        importlib.import_module(MODULES[options.framework])
        raise ValueError(f"{options.framework} has no role {options.role}")
    except SystemExit:
        write(output / f"{options.role}.json", {"peak_memory_bytes": measure.memory_bytes("VmHWM")})


def main():
    """Does the work of this rank."""
    options = arguments()
    is_worker = options.role == "worker"
    rank = ranks.own_rank(options.ranks) if is_worker else 0
    setting = dict(one.split("=", 1) for one in options.setting)
    place = ranks.Place(rank, options.ranks, options.threads, options.rendezvous.split(","), options.role, setting)
    ranks.set_environment(place)
    output = pathlib.Path(options.output)
    # Only now: frameworks read the environment when they are imported.
    if not is_worker:
        serve(options, output)
        return
    module = importlib.import_module(MODULES[options.framework])
    import_memory_bytes = measure.memory_bytes("VmRSS")
    import job

    task = job.read(options.job, rank)
    framework = module.Framework(task, place, options.dtype, options.framework)
    if options.epochs:
        import accuracy

        result = accuracy.train(framework, task, options)
    else:
        result = measure.measure(framework, task, options.warmup_steps, options.steps)
    result.update(framework=framework.name, version=framework.version, variant=framework.variant)
    result.update(communication=framework.communication, rank=rank, import_memory_bytes=import_memory_bytes)
    write(output / f"rank-{rank}.json", result)
    framework.finish()


if __name__ == "__main__":
    main()
    # Threads of a framework's communication may keep a process that has done its work.
    os._exit(0)
