"""Images of a folder, decoded, augmented and normalised as the trainer does it.

In: `train/<class>/*` and `test/<class>/*`. Out: arrays of pixels and labels, batches [N, H, W, C].
Invariant: classes and files are in the order of their names; the random numbers are not the trainer's, so batches differ in
order and crops, not in kind. Decoders may differ by rounding.
Source: He et al. 2015, section 4.2: four pixels of padding, a random crop, a random flip.
"""

import pathlib
from typing import NamedTuple

import numpy as np
from PIL import Image

# Those that the comparison gives the trainer, too: of CIFAR-10's training images.
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
STD = np.array([0.2470, 0.2435, 0.2616], np.float32)

PADDING = 4
SUFFIXES = {".jpg", ".jpeg", ".png"}


class Split(NamedTuple):
    """Pixels [N, H, W, C] in 0..255 and classes [N]."""

    pixels: np.ndarray
    labels: np.ndarray


def read_split(directory, image_size):
    """All images below a folder of classes."""
    classes = sorted(path for path in pathlib.Path(directory).iterdir() if path.is_dir())
    pixels, labels = [], []
    for label, folder in enumerate(classes):
        for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES):
            with Image.open(path) as image:
                decoded = np.asarray(image.convert("RGB"))
            if decoded.shape != (image_size, image_size, 3):
                raise SystemExit(f"{path}: expected {image_size}x{image_size} pixels, got {decoded.shape[:2]}")
            pixels.append(decoded)
            labels.append(label)
    if not pixels:
        raise SystemExit(f"{directory}: expected images below <class>/, found none")
    return Split(np.stack(pixels), np.array(labels, np.int32))


def normalised(pixels):
    """Pixels as the network takes them."""
    return (pixels.astype(np.float32) / 255 - MEAN) / STD


def augmented(images, random):
    """Each image moved by up to four pixels, black coming in, and mirrored or not. Call before normalising: afterwards 0 is the mean colour."""
    count, height, width, channels = images.shape
    padded = np.zeros((count, height + 2 * PADDING, width + 2 * PADDING, channels), images.dtype)
    padded[:, PADDING:-PADDING, PADDING:-PADDING] = images
    tops, lefts = random.integers(0, 2 * PADDING + 1, (2, count))
    rows = tops[:, None] + np.arange(height)
    columns = lefts[:, None] + np.arange(width)
    is_mirrored = random.integers(0, 2, count).astype(bool)
    columns[is_mirrored] = columns[is_mirrored, ::-1]
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
