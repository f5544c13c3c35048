"""Makes the network, the images and the answers that are right, and leaves them in a folder.

    python -m benchmarks.gpu.network FOLDER KIND PRECISION IMAGES

The network takes bytes: a `Rescaling` layer brings them to −1 … 1 inside. With random weights it
would answer every image alike; so its batch normalization takes the mean and variance of its own
images. Each residual block adds a quarter of what it might: random blocks in full multiply every
rounding, until half precision answers something else.

The right answers are those of float32. How far those of PRECISION are from them, and how near the
two most similar answers come to each other, is measured here: the tolerance lies in between.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.core.client import say
from benchmarks.gpu import bare
from benchmarks.gpu.images import FACTS
from benchmarks.models.images import ANSWERS, IMAGES, NETWORK
from benchmarks.models.network import closest

_SEED = 20_240_224
_BATCH = 32
_PATCH = 32
_SIZES = {"resnet50": 224, "tiny": 64}
_LAST_OF_BLOCK = "_3_bn"
_SHARE_OF_BLOCK = 0.25
_MARGIN, _LEAST_MARGIN = 4.0, 1.5

Bytes = npt.NDArray[np.uint8]


def make_images(count: int, size: int) -> Bytes:
    """Coarse patches of any colour, with noise over them."""
    generator = np.random.default_rng(_SEED)
    coarse = generator.integers(0, 224, (count, size // _PATCH, size // _PATCH, 3), np.uint8)
    patches = coarse.repeat(_PATCH, axis=1).repeat(_PATCH, axis=2)
    images: Bytes = patches + generator.integers(0, 32, patches.shape, np.uint8)
    return images


def make_network(kind: str, images: Bytes) -> Any:
    """ResNet-50, or a tiny one; batch normalization has the statistics of these images."""
    import keras

    keras.utils.set_random_seed(_SEED)
    inputs = keras.Input(images.shape[1:], dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(inputs)
    if kind == "tiny":
        answers = _tiny(scaled)
    else:
        answers = keras.applications.ResNet50(weights=None, input_tensor=scaled).outputs[0]
    network = keras.Model(inputs, answers, name=kind)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0  # matters in training alone: one step takes all of the statistics
            if layer.name.endswith(_LAST_OF_BLOCK):
                layer.gamma.assign(_SHARE_OF_BLOCK * layer.gamma)
    network(images, training=True)
    return network


def _tiny(images: Any) -> Any:
    """A network for rehearsals: one residual block, compiled in a moment in every mode."""
    import keras

    layers = keras.layers
    x = layers.Conv2D(16, 8, strides=8, name="tiny_conv")(images)
    block = layers.Conv2D(16, 3, padding="same", name="tiny_3_conv")(x)
    x = layers.Add()([x, layers.BatchNormalization(name="tiny_3_bn")(block)])
    return layers.Dense(16, activation="softmax", name="tiny_head")(layers.Flatten()(x))


def answers_of(path: Path, precision: str, images: Bytes) -> Any:
    """What the network in a file answers, called directly."""
    call = bare.compiled(bare.load(path, precision), "function", (_BATCH, *images.shape[1:]))
    batches = [call(images[first : first + _BATCH]) for first in range(0, len(images), _BATCH)]
    return np.concatenate([np.asarray(batch, np.float32) for batch in batches])


def allowed(off: float, apart: float) -> float:
    """A few times what is off, where that is well between none and the next answer."""
    return max(min(max(_MARGIN * off, apart / 4), apart / 2), _LEAST_MARGIN * off)


def main() -> None:
    folder, kind, precision = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    images = make_images(-(-int(sys.argv[4]) // _BATCH) * _BATCH, _SIZES[kind])
    versions = bare.versions()
    network = make_network(kind, images[: 2 * _BATCH])
    network.save(folder / NETWORK)
    right = answers_of(folder / NETWORK, "float32", images)
    off = float(np.abs(answers_of(folder / NETWORK, precision, images) - right).max())
    apart = closest(right)
    tolerance = allowed(off, apart)
    np.save(folder / IMAGES, images)
    np.save(folder / ANSWERS, right)
    facts = {
        "kind": kind,
        "precision": precision,
        "parameters": int(network.count_params()),
        "file_bytes": (folder / NETWORK).stat().st_size,
        "images": len(images),
        "image_bytes": images[0].nbytes,
        "largest_answer": float(right.max()),
        "closest_answers": apart,
        "off_in_this_precision": off,
        "tolerance": tolerance,
        "mixed_up_answers_are_seen": tolerance <= apart / 2,
        "versions": versions,
    }
    (folder / FACTS).write_text(json.dumps(facts))  # last: with it, the folder is complete
    say(facts)


if __name__ == "__main__":
    main()
