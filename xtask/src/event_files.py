"""Holds the event files of a run against its metrics, by TensorBoard's own reader.

usage: event_files.py DIR METRICS [EVERY]
"""

import io
import json
import sys

import numpy
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

directory, metrics, *every = sys.argv[1:]
events = EventAccumulator(directory, size_guidance={"scalars": 0, "histograms": 0, "images": 0})
events.Reload()
with open(metrics) as file:
    epochs = [json.loads(line) for line in file]
steps = [epoch["step"] for epoch in epochs]
shown = [step for step in range(1, steps[-1] + 1) if every and step % int(every[0]) == 0]
curves_at = sorted({*shown, *steps}) if every else list(range(1, steps[-1] + 1))
tags = events.Tags()


def expect(what, expected, got):
    if expected != got:
        sys.exit(f"{what}: expected {expected}, got {got}")


curves = {
    "train/loss": "train_loss",
    "train/accuracy": "train_top1",
    "test/loss": ("test", "loss"),
    "test/accuracy": ("test", "top1"),
    "epoch/images_per_second": "images_per_second",
}
for tag, key in curves.items():
    value = lambda epoch: epoch[key] if isinstance(key, str) else epoch[key[0]][key[1]]
    expected = [(epoch["step"], float(numpy.float32(value(epoch)))) for epoch in epochs]
    expect(tag, expected, [(event.step, event.value) for event in events.Scalars(tag)])
for tag in ["step/loss", "step/accuracy", "step/learning_rate", "step/images_per_second"]:
    expect(tag, curves_at, [event.step for event in events.Scalars(tag)])
gradients = [tag for tag in tags["histograms"] if tag.startswith("gradients/")]
expect("gradients of the classifier and more", True, "gradients/linear.weight" in gradients and len(gradients) > 10)
for tag in gradients:
    histograms = events.Histograms(tag)
    expect(tag, sorted({*shown, *steps}), [event.step for event in histograms])
    for event in histograms:
        expect(f"{tag}, numbers counted", event.histogram_value.num, sum(event.histogram_value.bucket))
        expect(f"{tag}, not all zero", True, event.histogram_value.sum_squares > 0)
expect("images", ["batch/images"], tags["images"])
images = events.Images("batch/images")
expect("images", sorted({1, *shown}), [event.step for event in images])
image = images[0]
expect("image", (image.width, image.height), Image.open(io.BytesIO(image.encoded_image_string)).size)
print(f"{len(epochs)} epochs, {len(gradients)} gradients, an image of {image.width} x {image.height}")
