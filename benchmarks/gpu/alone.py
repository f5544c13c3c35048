"""A process with a network of its own, which it calls in one way or another.

    python -m benchmarks.gpu.alone FOLDER NUMBER PRECISION

What people do who share nothing. It speaks JSON lines. Out: {"ready": true}. In, any number of
times:

    {"cell": [way, size]}   call it this way from here on, with so many images; out: {"ready": true}
    a schedule              run one load, as a client does; out: {"results": [report]}
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.client import measure, say
from benchmarks.core.stopwatch import Schedule
from benchmarks.gpu import bare
from benchmarks.gpu.images import Pictures
from benchmarks.models.images import NETWORK
from benchmarks.models.limit import Batches


class Own:
    """The network of this process, in the ways that `Batches` asks for."""

    def __init__(self, path: Path, precision: str) -> None:
        self._model = bare.load(path, precision)
        self._shape = self._model.input_shape[1:]

    def compiled(self, way: str, size: int) -> Callable[[Any], Any]:
        if way == "predict":
            return lambda rows: self._model.predict(rows, batch_size=size, verbose=0)
        call = bare.compiled(self._model, way, (size, *self._shape))
        return lambda rows: np.asarray(call(rows))


def main() -> None:
    folder = Path(sys.argv[1])
    pictures: Any = Pictures(folder, int(sys.argv[2]))
    batches: Any = Batches(Own(folder / NETWORK, sys.argv[3]), pictures)
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "cell" in order:
            batches.use(*order["cell"])
            say({"ready": True})
        else:
            say({"results": [measure(batches, pictures, Schedule(**order))]})


if __name__ == "__main__":
    main()
