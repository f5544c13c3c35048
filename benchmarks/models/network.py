"""Makes the network, the images and the answers that are right, and leaves them in a folder.

    python -m benchmarks.models.network FOLDER IMAGES

MobileNetV2 with random weights answers every image alike, to the last digit. So its batch
normalization takes the mean and variance of its own images: then answers differ from image to
image by far more than compiling changes them, and a mixed-up answer is seen. It says how near the
two most similar answers come to each other.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.core.client import say
from benchmarks.models.images import ANSWERS, IMAGES, NETWORK, SHAPE

_SEED = 20_240_224
_BATCH = 32
_PATCH = 16  # images are of coarse patches, with noise over them
_NOISE = 0.2

Floats = npt.NDArray[np.float32]


def make_images(count: int) -> Floats:
    """Images that differ, between −1 and 1, as MobileNetV2 takes them."""
    generator = np.random.default_rng(_SEED)
    height, width, channels = SHAPE
    coarse = generator.uniform(-1, 1, (count, height // _PATCH, width // _PATCH, channels))
    patches = coarse.repeat(_PATCH, axis=1).repeat(_PATCH, axis=2)
    noise = generator.uniform(-1, 1, (count, *SHAPE))
    return ((1 - _NOISE) * patches + _NOISE * noise).astype(np.float32)


def make_network(images: Floats) -> Any:
    """MobileNetV2 as `keras.applications` has it, with the statistics of these images."""
    import keras

    keras.utils.set_random_seed(_SEED)
    network = keras.applications.MobileNetV2(input_shape=SHAPE, weights=None)
    normalizing = [
        layer for layer in network.layers if isinstance(layer, keras.layers.BatchNormalization)
    ]
    usual = [layer.momentum for layer in normalizing]
    for layer in normalizing:
        layer.momentum = 0.0
    network(images, training=True)
    for layer, momentum in zip(normalizing, usual, strict=True):
        layer.momentum = momentum
    return network


def closest(answers: Floats) -> float:
    """The largest difference between the two answers that differ least."""
    apart = min(
        float(np.abs(answers[index + 1 :] - answer).max(axis=1).min())
        for index, answer in enumerate(answers[:-1])
    )
    return apart


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    images = make_images(count)
    network = make_network(images[: 2 * _BATCH])
    batches = [
        np.asarray(network(images[first : first + _BATCH], training=False))
        for first in range(0, count, _BATCH)
    ]
    answers = np.concatenate(batches)
    network.save(folder / NETWORK)
    np.save(folder / IMAGES, images)
    np.save(folder / ANSWERS, answers)
    say(
        {
            "parameters": int(network.count_params()),
            "file_bytes": (folder / NETWORK).stat().st_size,
            "images": count,
            "image_bytes": images[0].nbytes,
            "answer_bytes": answers[0].nbytes,
            "closest_answers": closest(answers),
        }
    )


if __name__ == "__main__":
    main()
