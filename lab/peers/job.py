"""The job that all frameworks do: what `trainer bench --export-job DIR` wrote.

In: its directory. Out: [`Job`]: sizes, learning rate, initial weights, each rank's batches.
Invariant: arrays have the bits that the trainer computes with; a job that this code does not know how to do is refused.
"""

import json
import pathlib
from typing import NamedTuple

import numpy as np

SCHEMA = "lockstep.job/1"
IMAGENET = [f"resnet{depth}" for depth in (18, 34, 50, 101, 152)]
DTYPES = {"F32": np.float32, "I32": np.int32}


class Job(NamedTuple):
    """What is trained, and how. `batches` are pairs of images [N, H, W, C] and labels [N], which come in turn."""

    model: str
    is_imagenet: bool
    depth: int
    num_classes: int
    image_size: int
    ranks: int
    batch_size_per_rank: int
    learning_rate: float
    momentum: float
    weight_decay: float
    weights: dict
    batches: list


def read_safetensors(path):
    """The arrays of a file by name. Format: length of a JSON header, the header, the bytes."""
    content = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    arrays = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__" or entry["dtype"] not in DTYPES:
            continue
        first, end = entry["data_offsets"]
        values = np.frombuffer(content[start + first : start + end], DTYPES[entry["dtype"]])
        # A copy, as frameworks want memory that they may write to.
        arrays[name] = values.reshape(entry["shape"]).copy()
    return arrays


def read(directory, rank):
    """The job as `rank` sees it."""
    directory = pathlib.Path(directory)
    facts = json.loads((directory / "job.json").read_text())
    sgd = facts["sgd"]
    is_imagenet = facts["model"] in IMAGENET
    expected = {"schema": SCHEMA, "shortcut": "b" if is_imagenet else "a", "nesterov": False, "decay_norm_and_bias": True}
    for name, value in expected.items():
        got = facts.get(name, sgd.get(name))
        if got != value:
            raise ValueError(f"{directory / 'job.json'}: {name}: expected {value}, got {got}")
    arrays = read_safetensors(directory / f"batches-rank{rank}.safetensors")
    return Job(
        model=facts["model"],
        is_imagenet=is_imagenet,
        depth=facts["depth"],
        num_classes=facts["num_classes"],
        image_size=facts["image_size"],
        ranks=facts["ranks"],
        batch_size_per_rank=facts["batch_size_per_rank"],
        learning_rate=facts["learning_rate"],
        momentum=sgd["momentum"],
        weight_decay=sgd["weight_decay"],
        weights=read_safetensors(directory / "weights.safetensors"),
        batches=list(zip(arrays["images"], arrays["labels"])),
    )
