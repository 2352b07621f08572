"""Writes the odd images of this folder and, in expected.txt, what Pillow makes of them.

Needs Pillow 13 and numpy. Run: python3 make.py
Each image is 16x16 of two flat halves; a line of expected.txt is: file, RGB of the left half, RGB of the right half.
"""

from pathlib import Path

import numpy
from PIL import Image

folder = Path(__file__).parent


def halves(left, right, dtype=numpy.uint8):
    pixels = numpy.zeros((16, 16, len(left)), dtype)
    pixels[:, :8] = left
    pixels[:, 8:] = right
    return pixels[:, :, 0] if len(left) == 1 else pixels


red_blue = Image.fromarray(halves([200, 30, 40], [20, 60, 180]))
green = Image.fromarray(halves([0, 255, 0], [0, 255, 0]))
cmyk = Image.fromarray(halves([10, 200, 150, 20], [180, 90, 5, 60]), mode="CMYK")

cmyk.save(folder / "cmyk.jpg", quality=95)
red_blue.save(folder / "progressive.jpg", quality=95, progressive=True)
red_blue.save(folder / "jpeg_named.png", format="JPEG", quality=95)
red_blue.convert("L").save(folder / "grey.jpg", quality=95)
Image.fromarray(halves([0x1234], [0xFEDC], numpy.uint16)).save(folder / "grey_16_bit.png")
red_blue.quantize(4).save(folder / "palette.png")
Image.fromarray(halves([0], [255])).convert("1").save(folder / "one_bit.png")
red_blue.convert("LA").save(folder / "grey_alpha.png")
red_blue.save(folder / "animated.webp", save_all=True, append_images=[green], duration=100, lossless=True)
red_blue.save(folder / "animated.png", save_all=True, append_images=[green], duration=100)
red_blue.save(folder / "gif_named.png", format="GIF")
red_blue.quantize(4).save(folder / "tiff_palette_named.jpg", format="TIFF", compression="tiff_lzw")
red_blue.save(folder / "turned.tif", compression="tiff_deflate", tiffinfo={274: 3})
cmyk.save(folder / "cmyk.tif", compression="packbits")
Image.fromarray(halves([0x1234], [0xFEDC], numpy.uint16)).save(folder / "grey_16_bit.tif")
Image.fromarray(halves([0], [255])).convert("1").save(folder / "fax.tif", compression="group4")
red_blue.quantize(2).save(folder / "transparent.gif", transparency=1)
red_blue.convert("L").save(folder / "grey.pgm")
whole = (folder / "palette.png").read_bytes()
(folder / "no_end.png").write_bytes(whole[:-12])
(folder / "cut_end.png").write_bytes(whole[:-3])
exif = Image.Exif()
exif[0x0112] = 3  # Turned by 180 degrees.
red_blue.save(folder / "turned.jpg", quality=95, exif=exif)

with open(folder / "expected.txt", "w") as expected:
    others = [path for kind in ("webp", "tif", "gif", "pgm") for path in sorted(folder.glob(f"*.{kind}"))]
    for path in sorted(folder.glob("*.*g")) + others:
        image = Image.open(path)
        if image.mode == "I;16":
            # Pillow clips here instead of scaling; the upper byte is the pixel.
            image = Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8))
        image = image.convert("RGB")
        colours = [*image.getpixel((3, 8)), *image.getpixel((12, 8))]
        print(path.name, *colours, file=expected)
