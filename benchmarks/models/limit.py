"""The process that shows the limit: a compiled function, batch after batch, and nothing else.

    python -m benchmarks.models.limit FOLDER

Its batches lie ready in memory. It has no clients, sends nothing and imports no Penstock. It speaks
JSON lines. Out: {"ready": true}. In, any number of times:

    {"cell": [mode, size]}   compile this and use it from here on; out: how long that took
    {"seconds": s}           call it for so long, at least twice; out: images a second
    a schedule               run one load, as a client does; out: {"results": [report]}
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.core.client import measure, say
from benchmarks.core.stopwatch import Recorder, Schedule
from benchmarks.models.images import Images

_LEAST = 2


class Batches:
    """Calls one compiled function. An `Exchange` whose requests are whole batches."""

    def __init__(self, network: Any, images: Images) -> None:
        self._network = network
        self._images = images
        self._function: Any = None
        self._size = 0

    def use(self, mode: str, size: int) -> None:
        """Compile, or take what was compiled before, and run it once."""
        self._size = size
        self._function = self._network.compiled(mode, size)
        self._once()

    def rate(self, seconds: float) -> float:
        """Images a second."""
        self._once()
        began = time.monotonic()
        calls = 0
        while calls < _LEAST or time.monotonic() - began < seconds:
            self._once()
            calls += 1
        return calls * self._size / (time.monotonic() - began)

    def run(self, images: Images, recorder: Recorder) -> None:
        going = True
        while going:
            sent_at = time.monotonic_ns()
            self._once()
            now = time.monotonic_ns()
            for _ in range(self._size):
                going = recorder.finished(sent_at, now)

    def close(self) -> None:
        pass

    def _once(self) -> None:
        batch, expected = self._images.batch(self._size)
        self._images.check_batch(self._function(batch), expected)


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from benchmarks.models.compiled import Network

    folder = Path(sys.argv[1])
    images = Images(folder, number=0)
    batches = Batches(Network(folder), images)
    assert "penstock" not in sys.modules
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "cell" in order:
            began = time.monotonic()
            batches.use(*order["cell"])
            say({"built_s": time.monotonic() - began})
        elif "seconds" in order:
            say({"images_per_s": batches.rate(order["seconds"])})
        else:
            say({"results": [measure(batches, images, Schedule(**order))]})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
