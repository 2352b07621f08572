"""Writes distort.bin: what torchvision makes of one PIL picture by the changes of ColorJitter and by RandomRotation.

    python distort.py                  # Python with torchvision; written by 0.29.2 with Pillow 13.0.0

Prints the mean share of the area and the mean logarithm of width over height that RandomErasing draws for 32 x 32 pixels.
"""
import math
from pathlib import Path

import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from trivial_augment import picture


def results():
    for factor in (0.0, 0.3, 0.85, 1.2, 1.9):
        for change in (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation):
            yield change(picture(), factor)
    for sixteenth in range(-8, 9):
        yield F.adjust_hue(picture(), sixteenth / 16)
    for degrees in (-170.0, -45.5, -10.0, 0.0, 3.75, 30.0, 90.0, 180.0):
        yield F.rotate(picture(), degrees)
    factors = dict(brightness_factor=1.2, contrast_factor=0.85, saturation_factor=1.3, hue_factor=-0.1)
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        jitter = v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
        yield jitter.transform(picture(), dict(fn_idx=torch.tensor(order), **factors))


def erased(count):
    erasing = v2.RandomErasing(p=1.0)
    image = torch.zeros(3, 32, 32)
    draws = [erasing.make_params([image]) for _ in range(count)]
    draws = [draw for draw in draws if draw["v"] is not None]
    areas = sum(draw["h"] * draw["w"] / 1024 for draw in draws)
    ratios = sum(math.log(draw["w"] / draw["h"]) for draw in draws)
    return len(draws), areas / len(draws), ratios / len(draws)


if __name__ == "__main__":
    Path(__file__).with_name("distort.bin").write_bytes(b"".join(image.tobytes() for image in results()))
    torch.manual_seed(0)
    print(*erased(400_000))
