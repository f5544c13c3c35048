"""How fast calls follow each other: alone, or with the next one on its way, as a worker has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.model.shortage import is_out_of_memory

HANDS = 4  # of a worker on a GPU (`penstock.worker.loop`)
BATCH_BYTES = 512 << 20  # of inputs: the largest batch that is searched for
MOST_BUFFERS = HANDS * BATCH_BYTES  # of one model: each hand has one
IN_FLIGHT = 2  # so many of them have a call running; the others gather and scatter
_ENOUGH = 0.4  # seconds of measuring one size
_FEWEST = 3


def alone(call: Callable[[], object], enough: float = 0.25, most: int = 1000) -> float:
    """Seconds that a call takes, waiting for its result: the shortest of several.

    What disturbs a measurement only makes it longer.
    """
    times: list[float] = []
    until = time.perf_counter() + enough
    while len(times) < _FEWEST or (time.perf_counter() < until and len(times) < most):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def in_flight(call: Callable[[], object], calls: int = IN_FLIGHT, enough: float = _ENOUGH) -> float:
    """Seconds from one call to the next when so many threads make them. Raises what they raise."""
    done: list[int] = [0] * calls
    errors: list[Exception] = []
    began = time.perf_counter()

    def repeat(number: int) -> None:
        try:
            while not errors and (done[number] < _FEWEST or time.perf_counter() < began + enough):
                call()
                done[number] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return (time.perf_counter() - began) / sum(done)


def as_served(call: Callable[[], object]) -> float:
    """Seconds from one call to the next in a worker on a GPU: in flight, if that fits its memory.

    What fits only once has the device to itself there (`traffic`).
    """
    try:
        return in_flight(call)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return alone(call)
