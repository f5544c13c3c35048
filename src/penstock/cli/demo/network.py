"""The demo's model: a dense network in numpy, with weights as large as those of a ResNet-50.

A file of half-precision weights, compressed as checkpoints often are, is read and unpacked when the
network is made. Answering one image reads every weight once, and so does answering eight at a time:
that is why batches pay, here as on a GPU.
"""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = (784, 4096, 4096, 10)
WEIGHTS_VARIABLE = "PENSTOCK_DEMO_WEIGHTS"
PARAMETERS = sum(before * after for before, after in itertools.pairwise(LAYERS))

Array = np.ndarray[Any, Any]


def write_weights(path: Path) -> None:
    """Random weights, scaled so that answers stay of moderate size."""
    generator = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number, (before, after) in enumerate(itertools.pairwise(LAYERS)):
            layer = generator.standard_normal((before, after), np.float32) * (2 / before) ** 0.5
            file = io.BytesIO()
            np.save(file, layer.astype(np.float16))
            archive.writestr(f"{number}.npy", file.getvalue())


class Network:
    """The network; its weights come from the file that the environment names."""

    def __init__(self) -> None:
        with np.load(os.environ[WEIGHTS_VARIABLE]) as archive:
            self._layers = [archive[name].astype(np.float32) for name in sorted(archive.files)]

    def __call__(self, images: Array) -> Array:
        """Scores of ten classes for each image."""
        *hidden, last = self._layers
        x = images
        for layer in hidden:
            x = np.maximum(x @ layer, 0)
        scores: Array = x @ last
        return scores


def images(seed: int, count: int) -> Array:
    """Images that one asker asks about, the same in each run."""
    return np.random.default_rng(seed).random((count, LAYERS[0]), np.float32)
