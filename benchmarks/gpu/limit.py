"""The process that shows the limit: a compiled function, called on data that the device has.

    python -m benchmarks.gpu.limit FOLDER

It imports no Penstock. It speaks JSON lines. Out: {"ready": true}. In, any number of times:
precision, mode, size, seconds, calls. Out: images a second with calls in flight, and the latency of
calls that take an array of the host's and are waited for, answer and all; or {"error": text}.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.client import say
from benchmarks.gpu.images import Pictures
from benchmarks.models.images import NETWORK

_IN_FLIGHT_SECONDS = 0.15
_FEWEST, _MOST = 4, 64


def rate(call: Any, tensor: Any, size: int, seconds: float) -> tuple[float, int]:
    """Images a second, and how many calls were in flight.

    Calls are sent one after the other, and the last of several is waited for: few enough that the
    device's queue stays short, enough that its start and end do not count.
    """
    began = time.monotonic()
    for _ in range(_FEWEST):
        answer = call(tensor)
    answer.numpy()
    each = (time.monotonic() - began) / _FEWEST
    in_flight = min(max(int(_IN_FLIGHT_SECONDS / each), _FEWEST), _MOST)
    count = 0
    began = time.monotonic()
    while (took := time.monotonic() - began) < seconds or not count:
        for _ in range(in_flight):
            answer = call(tensor)
        answer.numpy()
        count += in_flight
    return count * size / took, in_flight


def latencies(call: Any, images: Pictures, size: int, calls: int, seconds: float) -> list[float]:
    """Milliseconds from an array of the host's to the checked answer's array."""
    found: list[float] = []
    until = time.monotonic() + seconds
    while len(found) < calls and (time.monotonic() < until or not found):
        batch, expected = images.batch(size)
        began = time.perf_counter()
        answer = call(batch).numpy()
        found.append(1000 * (time.perf_counter() - began))
        images.check_batch(answer, expected)
    return found


class Cells:
    """One network at each precision, compiled for one cell after another."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NETWORK
        self._images = Pictures(folder, number=0)
        self._models: dict[str, Any] = {}

    def measure(
        self, precision: str, mode: str, size: int, seconds: float, calls: int
    ) -> dict[str, Any]:
        from benchmarks.gpu import bare

        if precision not in self._models:
            self._models[precision] = bare.load(self._path, precision)
        batch, expected = self._images.batch(size)
        began = time.monotonic()
        call = bare.compiled(self._models[precision], mode, batch.shape)
        self._images.check_batch(call(batch).numpy(), expected)
        built_s = time.monotonic() - began
        images_per_s, in_flight = rate(call, bare.on_device(batch), size, seconds)
        waited = latencies(call, self._images, size, calls, seconds)
        p50, p99 = np.percentile(waited, [50, 99])
        return {
            "images_per_s": round(images_per_s, 1),
            "in_flight": in_flight,
            "p50_ms": round(float(p50), 3),
            "p99_ms": round(float(p99), 3),
            "calls": len(waited),
            "built_s": round(built_s, 2),
        }


def main() -> None:
    cells = Cells(Path(sys.argv[1]))
    say({"ready": True})
    for line in sys.stdin:
        try:
            say(cells.measure(**json.loads(line)))
        except Exception as error:  # the next cell may do better
            say({"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
        assert "penstock" not in sys.modules


if __name__ == "__main__":
    main()
