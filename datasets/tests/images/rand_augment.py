"""Writes rand_augment.bin: what PIL makes of one picture by each operation of RandAugment in the form of timm's rand-mM-mstd0.5-inc1.

    python rand_augment.py             # Python with Pillow 12: later ones refuse to posterize to 0 bits
"""
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps

from trivial_augment import picture

FILL = (124, 116, 104)


def operations(magnitude, sign, reading):
    def up_to(largest):
        return magnitude / 10 * largest

    def affine(image, matrix):
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=reading, fillcolor=FILL)

    def add(image):
        return image.point([min(255, value + int(up_to(110))) if value < 128 else value for value in range(256)] * 3)

    factor = max(0.1, 1.0 + sign * up_to(0.9))
    return [
        lambda image: ImageOps.autocontrast(image),
        lambda image: ImageOps.equalize(image),
        lambda image: ImageOps.invert(image),
        lambda image: image.rotate(sign * up_to(30.0), resample=reading, fillcolor=FILL),
        lambda image: ImageOps.posterize(image, 4 - int(up_to(4))),
        lambda image: ImageOps.solarize(image, 256 - int(up_to(256))),
        add,
        lambda image: ImageEnhance.Color(image).enhance(factor),
        lambda image: ImageEnhance.Contrast(image).enhance(factor),
        lambda image: ImageEnhance.Brightness(image).enhance(factor),
        lambda image: ImageEnhance.Sharpness(image).enhance(factor),
        lambda image: affine(image, (1, sign * up_to(0.3), 0, 0, 1, 0)),
        lambda image: affine(image, (1, 0, 0, sign * up_to(0.3), 1, 0)),
        lambda image: affine(image, (1, 0, sign * up_to(0.45) * image.width, 0, 1, 0)),
        lambda image: affine(image, (1, 0, 0, 0, 1, sign * up_to(0.45) * image.height)),
    ]


if __name__ == "__main__":
    results = bytearray()
    for kind in range(15):
        for magnitude in (1.7, 6.0, 10.0):
            for sign in (1.0, -1.0):
                for reading in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
                    results += operations(magnitude, sign, reading)[kind](picture()).tobytes()
    Path(__file__).with_name("rand_augment.bin").write_bytes(results)
