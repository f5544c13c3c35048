"""A process with a model of its own, which it calls with one image at a time.

    python -m benchmarks.models.alone FOLDER NUMBER

What people do who share nothing. TensorFlow takes as many threads as it wants. It speaks JSON
lines. Out: {"ready": true}. In, any number of times:

    {"way": "predict"}    use `model.predict` from here on; out: {"ready": true}
    {"way": "function"}   use a `tf.function` around the model
    a schedule            run one load, as a client does; out: {"results": [report]}
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.client import measure, say
from benchmarks.core.stopwatch import Recorder, Schedule
from benchmarks.models.images import NETWORK, Images


class OwnModel:
    """An `Exchange` that asks nobody."""

    def __init__(self, folder: Path, images: Images) -> None:
        import keras
        import tensorflow as tf

        model = keras.models.load_model(folder / NETWORK)
        function = tf.function(lambda rows: model(rows, training=False))
        self._ways: dict[str, Any] = {
            "predict": lambda rows: model.predict(rows, verbose=0),
            "function": lambda rows: function(tf.convert_to_tensor(rows)).numpy(),
        }
        self._call: Any = None
        self._images = images

    def use(self, way: str) -> None:
        """Call the model this way, and do it once: the first call compiles."""
        self._call = self._ways[way]
        self._images.check(0, self._ask())

    def run(self, images: Images, recorder: Recorder) -> None:
        while True:
            sent_at = time.monotonic_ns()
            answer = self._ask()
            now = time.monotonic_ns()
            images.check(0, answer)
            if not recorder.finished(sent_at, now):
                return

    def close(self) -> None:
        pass

    def _ask(self) -> Any:
        return self._call(self._images.fresh(0)[np.newaxis])


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    images = Images(folder, number)
    own = OwnModel(folder, images)
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "way" in order:
            own.use(order["way"])
            say({"ready": True})
        else:
            say({"results": [measure(own, images, Schedule(**order))]})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
