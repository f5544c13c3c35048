"""The process that owns the engine: it times its start, then tells its statistics when asked.

    python -m benchmarks.models.engine NAME FOLDER CACHE

CACHE is the folder in which Penstock keeps what it finds out about models ($PENSTOCK_CACHE). All
settings are Penstock's own defaults. Out, with the first answer: seconds from starting the engine
until it was ready and until it had answered one image. In: any line. Out: the statistics.
"""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.core.client import say
from benchmarks.models.images import NETWORK, Images


def main() -> None:
    name, folder, cache = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    os.environ["PENSTOCK_CACHE"] = cache
    import penstock

    images = Images(folder, number=1 << 20)
    engine = penstock.Engine(folder / NETWORK, name=name)
    began = time.monotonic()
    with engine:
        ready = time.monotonic()
        answer = engine.predict(images.fresh(0)[np.newaxis])
        answered = time.monotonic()
        images.check(0, answer)
        say({"ready_s": ready - began, "answered_s": answered - began})
        for _ in sys.stdin:
            say(asdict(engine.statistics()))


if __name__ == "__main__":
    main()
