"""Makes the network and the data: `python -m benchmarks.offline.rows FOLDER ARRAYS FILES`.

The network takes uint8 and scales it, so that all ways move the same bytes. The files are JPEGs of
several sizes, as photographs are; the array holds other images, of the network's own size.
"""

import os
import sys
from pathlib import Path

import numpy as np

SIDE = 96
NETWORK, ARRAY, FILES = "network.keras", "images.npy", "files"
_SEED = 20_240_224
_BLOCK = 512


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    folder, arrays, files = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _write_array(folder / ARRAY, arrays)
    _write_files(folder / FILES, files)
    _write_network(folder)


def _scenes(generator: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Coarse patches with noise: JPEG has something to compress, and no two are alike."""
    coarse = generator.integers(0, 200, (count, height // 16, width // 16, 3), dtype=np.uint8)
    patches = coarse.repeat(16, axis=1).repeat(16, axis=2)
    return patches + generator.integers(0, 55, patches.shape, dtype=np.uint8)


def _write_array(path: Path, count: int) -> None:
    generator = np.random.default_rng(_SEED)
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, SIDE, SIDE, 3))
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        array[start:stop] = _scenes(generator, stop - start, SIDE, SIDE)
    array.flush()


def _write_files(folder: Path, count: int) -> None:
    from PIL import Image

    generator = np.random.default_rng(_SEED + 1)
    folder.mkdir()
    for number in range(count):
        height, width = 16 * generator.integers(10, 24, 2)
        (pixels,) = _scenes(generator, 1, height, width)
        Image.fromarray(pixels).save(folder / f"{number:06d}.jpg", quality=90)


def _write_network(folder: Path) -> None:
    import keras

    keras.utils.set_random_seed(_SEED)
    inputs = keras.Input((SIDE, SIDE, 3), dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 127.5, -1)(inputs)
    body = keras.applications.MobileNetV2(input_shape=(SIDE, SIDE, 3), weights=None)
    network = keras.Model(inputs, body(scaled))
    normalizing = [
        layer for layer in body.layers if isinstance(layer, keras.layers.BatchNormalization)
    ]
    for layer in normalizing:  # with statistics of its own, answers differ from image to image
        layer.momentum = 0.0
    network(np.load(folder / ARRAY, mmap_mode="r")[:64], training=True)
    for layer in normalizing:
        layer.momentum = 0.99
    network.save(folder / NETWORK)


if __name__ == "__main__":
    main()
