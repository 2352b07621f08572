"""Writes what Pillow makes of drawn images (resized.bin), JPEG files of all samplings (rows_*.jpg), and the sha256 of Pillow's pixels of
each (rows.txt).

Needs Pillow 13, numpy, and libjpeg-turbo's cjpeg and jpegtran. Run: python3 make.py
resized.bin holds cases: eight u16 (little endian), then the pixels [size, size, 3]. The numbers are the image's width and height; left,
top, width and height of a part that is cut out and resized, as torchvision's resized_crop does; or 0, 0, 0 and the length of the shorter
side, as its Resize and CenterCrop do; the size; and 0.
"""

import hashlib
import io
import struct
import subprocess
from pathlib import Path

import numpy
from PIL import Image

folder = Path(__file__).parent


def drawn(width, height):
    y, x, channel = numpy.meshgrid(range(height), range(width), range(3), indexing="ij")
    return Image.fromarray(((x * 7 + y * 13 + channel * 50) ^ (x * y // 3)).astype(numpy.uint8))


def resize(image, shorter_side):
    """torchvision.transforms.functional.resize of one number."""
    width, height = image.size
    short, long = min(width, height), max(width, height)
    longer_side = int(shorter_side * long / short)
    size = (shorter_side, longer_side) if width <= height else (longer_side, shorter_side)
    return image if image.size == size else image.resize(size, Image.BILINEAR)


def center_crop(image, size):
    """torchvision.transforms.functional.center_crop."""
    top, left = (int(round((side - size) / 2.0)) for side in (image.height, image.width))
    return image.crop((left, top, left + size, top + size))


crops = [
    (75, 56, 10, 3, 40, 41), (75, 56, 0, 0, 75, 56), (75, 56, 70, 50, 5, 6), (75, 56, 1, 1, 19, 54), (20, 20, 0, 0, 20, 20),
    (300, 7, 13, 0, 260, 7), (7, 300, 0, 13, 7, 260), (211, 173, 3, 5, 200, 160), (2, 3, 1, 1, 1, 2), (41, 41, 0, 20, 20, 21),
]
middles = [(75, 56, 23), (56, 75, 23), (75, 56, 20), (20, 20, 20), (21, 20, 21), (500, 31, 22), (31, 500, 25), (5, 4, 24), (211, 173, 29)]
with open(folder / "resized.bin", "wb") as file:
    size = 20
    for width, height, left, top, w, h in crops:
        part = drawn(width, height).crop((left, top, left + w, top + h)).resize((size, size), Image.BILINEAR)
        file.write(struct.pack("<8H", width, height, left, top, w, h, size, 0) + part.tobytes())
    for width, height, shorter_side in middles:
        part = center_crop(resize(drawn(width, height), shorter_side), size)
        file.write(struct.pack("<8H", width, height, 0, 0, 0, shorter_side, size, 0) + part.tobytes())

photo = drawn(45, 70).resize((45, 70), Image.BOX)
photo.save(folder / "rows_444.jpg", quality=80, subsampling="4:4:4")
photo.save(folder / "rows_422.jpg", quality=80, subsampling="4:2:2")
photo.save(folder / "rows_420.jpg", quality=80, subsampling="4:2:0")
photo.save(folder / "rows_restarts.jpg", quality=80, subsampling="4:2:0", restart_marker_blocks=3)
photo.save(folder / "rows_progressive.jpg", quality=80, progressive=True)
photo.convert("L").save(folder / "rows_grey.jpg", quality=80)
noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (23, 30, 3)).astype(numpy.uint8))
noise.save(folder / "rows_noise.jpg", quality=96, subsampling="4:2:0", optimize=True)
noise.save(folder / "rows_coarse.jpg", quality=5, subsampling="4:2:2", restart_marker_rows=1)
noise.save(folder / "rows_rgb.jpg", quality=60, keep_rgb=True)
# So narrow that libjpeg repeats the colours.
noise.crop((0, 0, 4, 23)).save(folder / "rows_narrow_420.jpg", quality=80, subsampling="4:2:0")
noise.crop((0, 0, 3, 9)).save(folder / "rows_narrow_422.jpg", quality=80, subsampling="4:2:2")


def written(name, command, image, scans=""):
    """Writes a file by cjpeg or jpegtran."""
    data = io.BytesIO()
    image.save(data, "PPM" if command[0] == "cjpeg" else "JPEG", quality=50)
    (folder / "scans").write_text(scans)
    options = ["-scans", str(folder / "scans")] if scans else []
    with open(folder / f"rows_{name}.jpg", "wb") as file:
        subprocess.run([*command, *options], input=data.getvalue(), stdout=file, check=True)
    (folder / "scans").unlink()


small = Image.fromarray((numpy.array(photo).astype(int) // 8 + 60).astype(numpy.uint8)).crop((0, 0, 35, 41))
written("scans", ["cjpeg", "-quality", "60"], small, "0; 1; 2;")
written("vertical", ["cjpeg", "-sample", "1x2,1x1,1x1", "-restart", "2B"], small, "0; 1 2;")
written("wide", ["cjpeg", "-sample", "4x1,1x1,2x1", "-optimize"], small)
written("arithmetic", ["cjpeg", "-arithmetic", "-restart", "4B"], small)
written("arithmetic_progressive", ["cjpeg", "-arithmetic", "-progressive"], small)
written("ink", ["jpegtran", "-progressive"], small.convert("CMYK"))
# Without the last scans: libjpeg estimates what is missing.
written("means", ["cjpeg"], small, "0,1,2: 0-0,0,0;")
written("incomplete", ["cjpeg"], small, "0,1,2: 0-0,0,1; 0: 1-5,0,2; 1: 1-63,0,1;")

with open(folder / "rows.txt", "w") as file:
    for path in sorted(folder.glob("rows_*.jpg")):
        print(path.stem.removeprefix("rows_"), hashlib.sha256(Image.open(path).convert("RGB").tobytes()).hexdigest(), file=file)
