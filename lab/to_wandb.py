"""Sends the epochs of a run to Weights & Biases, during the run or after it.

    pip install wandb
    python3 to_wandb.py runs/first PROJECT

In: a folder of `trainer train`. Out: one point an epoch, and the options of the run. Invariant: no file of the run changes.
"""

import json
import sys
import time
import tomllib
from pathlib import Path

import wandb


def flat(table, prefix=""):
    """The numbers of nested tables, such as val/top1."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            yield prefix + key, value


run, project = Path(sys.argv[1]), sys.argv[2]
with open(run / "run.toml", "rb") as options:
    wandb.init(project=project, name=run.name, config=tomllib.load(options))
next_epoch, has_ended = 0, False
while not has_ended:
    # A run that ends after this line is read once more.
    has_ended = (run / "summary.json").exists()
    metrics = run / "metrics.jsonl"
    text = metrics.read_text() if metrics.exists() else ""
    for record in map(json.loads, text[: text.rfind("\n") + 1].splitlines()):
        if record["epoch"] >= next_epoch:
            next_epoch = record["epoch"] + 1
            wandb.log(dict(flat(record)), step=next_epoch)
    time.sleep(0 if has_ended else 5)
wandb.finish()
