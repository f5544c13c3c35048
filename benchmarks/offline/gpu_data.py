"""Makes what the jobs on a GPU read: one large array of images, and a folder of JPEG files.

The array repeats the images of `benchmarks.gpu`, whose right answers are known. The files are
photographs' size, about 30 KB; of every `_DISTINCT` the next ones are links to the first, which
take as long to decode. What an earlier command has left is used again.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.models.images import IMAGES

ARRAY, FILES = "rows.npy", "files"
DISTINCT = 2_000
_SEED = 20_240_224
_HEIGHT, _WIDTH = 288, 384
_PATCH, _QUALITY = 16, 88
_BLOCK = 2_048


def make_array(folder: Path, rows: int) -> Path:
    """So many rows, on the disk: what is still being written would be in the way of the job."""
    images = np.load(folder / IMAGES, mmap_mode="r")
    path = folder / f"{rows}-{ARRAY}"
    shape = (rows, *images.shape[1:])
    if path.exists() and np.load(path, mmap_mode="r").shape == shape:
        return path
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        description = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, description)
        for start in range(0, rows, len(images)):
            images[: rows - start].tofile(file)
        os.fsync(file.fileno())
    partial.rename(path)
    return path


def make_files(folder: Path, count: int) -> Path:
    """So many files, of which the first are different."""
    where = folder / f"{count}-{FILES}"
    if where.exists() and sum(1 for _ in where.iterdir()) == count:
        return where
    where.mkdir(exist_ok=True)
    distinct = min(count, DISTINCT)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_write, [where] * distinct, range(distinct), chunksize=25))
    for number in range(distinct, count):
        link = _name(where, number)
        link.unlink(missing_ok=True)
        link.hardlink_to(_name(where, number % distinct))
    os.sync()
    return where


def _write(folder: Path, number: int) -> None:
    from PIL import Image

    generator = np.random.default_rng((_SEED, number))
    coarse = generator.integers(0, 224, (_HEIGHT // _PATCH, _WIDTH // _PATCH, 3), np.uint8)
    patches = coarse.repeat(_PATCH, axis=0).repeat(_PATCH, axis=1)
    pixels = patches + generator.integers(0, 32, patches.shape, np.uint8)
    Image.fromarray(pixels).save(_name(folder, number), quality=_QUALITY)


def _name(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.jpg"
