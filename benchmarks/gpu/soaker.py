"""A client process of the soak: rows of whole numbers, whose answers numpy knows to the last digit.

    python -m benchmarks.gpu.soaker make FOLDER                   makes the model
    python -m benchmarks.gpu.soaker ask FOLDER ENDPOINT NUMBER    asks, and checks every answer

The model is one dense layer. Its weights and inputs are small whole numbers: their products and
sums are exact in every precision that a GPU may choose for float32, and in every order.

The client speaks JSON lines. Out: {"ready": true}. In: {"rows": n, "call": rows a call}. Out: the
rows that were answered rightly, after all were; one that is not ends the process.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.core.client import say
from benchmarks.models.images import WrongAnswer

FILE, WEIGHTS = "soak.keras", "soak.npy"
_INPUTS, _OUTPUTS = 64, 32
_SEED = 20_240_224

Floats = npt.NDArray[np.float32]


def make(folder: Path) -> None:
    """The model's file, and its weights for those who check."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a file can be written without a GPU
    import keras

    generator = np.random.default_rng(_SEED)
    weights = generator.integers(-8, 9, (_INPUTS, _OUTPUTS)).astype(np.float32)
    layer = keras.layers.Dense(_OUTPUTS, use_bias=False, activation="relu")
    model = keras.Sequential([keras.Input((_INPUTS,)), layer])
    layer.set_weights([weights])
    model.save(folder / FILE)
    np.save(folder / WEIGHTS, weights)
    say({"ready": True})


def ask(folder: Path, endpoint: str, number: int) -> None:
    """Calls of `predict`, one after the other."""
    import penstock

    weights: Floats = np.load(folder / WEIGHTS)
    generator = np.random.default_rng((_SEED, number))
    with penstock.connect(endpoint, wait=60) as client:
        say({"ready": True})
        for line in sys.stdin:
            order = json.loads(line)
            done = 0
            while done < order["rows"]:
                size = min(order["call"], order["rows"] - done)
                rows = generator.integers(0, 256, (size, _INPUTS)).astype(np.float32)
                answers = client.predict(rows)
                if not np.array_equal(answers, np.maximum(rows @ weights, 0)):
                    raise WrongAnswer(f"among rows {done} to {done + size} of client {number}")
                done += size
            say({"rows": done})


def main() -> None:
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        ask(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))


if __name__ == "__main__":
    main()
