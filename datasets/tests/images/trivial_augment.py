"""Writes trivial_augment.bin: what PIL makes of one picture by each operation of TrivialAugment's wide space.

    python trivial_augment.py          # Python with Pillow

The operations are those of torchvision's TrivialAugmentWide on PIL images, nearest neighbour, black outside.
"""
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps

HEIGHT, WIDTH = 12, 10


def picture():
    def pixel(y, x):
        return (40 + 30 * ((x // 5 + y // 6) % 3), (x * 9 + y * 3) % 256, (x * x * 7 + y * 31 + x * y) % 199 + 20)

    return Image.frombytes("RGB", (WIDTH, HEIGHT), bytes(v for y in range(HEIGHT) for x in range(WIDTH) for v in pixel(y, x)))


def affine(image, matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def operations(bin, sign):
    def up_to(largest):
        return largest * bin / 30

    def signed(largest):
        return sign * up_to(largest)

    factor = 1.0 + signed(0.99)
    return [
        lambda image: image,
        lambda image: affine(image, (1, signed(0.99), 0, 0, 1, 0)),
        lambda image: affine(image, (1, 0, 0, signed(0.99), 1, 0)),
        lambda image: affine(image, (1, 0, -int(signed(32.0)), 0, 1, 0)),
        lambda image: affine(image, (1, 0, 0, 0, 1, -int(signed(32.0)))),
        lambda image: image.rotate(signed(135.0), Image.Resampling.NEAREST),
        lambda image: ImageEnhance.Brightness(image).enhance(factor),
        lambda image: ImageEnhance.Color(image).enhance(factor),
        lambda image: ImageEnhance.Contrast(image).enhance(factor),
        lambda image: ImageEnhance.Sharpness(image).enhance(factor),
        lambda image: ImageOps.posterize(image, 8 - round(up_to(6))),
        lambda image: ImageOps.solarize(image, 255 - up_to(255)),
        lambda image: ImageOps.autocontrast(image),
        lambda image: ImageOps.equalize(image),
    ]


if __name__ == "__main__":
    results = bytearray()
    for kind in range(14):
        for bin in (0, 7, 15, 20, 30):
            for sign in (1.0, -1.0):
                results += operations(bin, sign)[kind](picture()).tobytes()
    Path(__file__).with_name("trivial_augment.bin").write_bytes(results)
