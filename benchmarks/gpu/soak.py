"""The part `soak`: many rows through a small model, every answer checked, and memory watched.

A tenth of the rows goes first and does not count. Memory of the first quarter of what follows is
compared with that of the last: of the card in all, and of the engine and its worker (PSS).
"""

import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.core.memory import held_by
from benchmarks.core.processes import Child, children
from benchmarks.gpu import card
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row
from benchmarks.gpu.served import ServedNetwork
from benchmarks.gpu.soaker import FILE

_WITHIN = 120.0
_ROWS_A_SECOND = 2_000  # slower than this, and something is wrong
_EVERY = 0.25
_WARM_SHARE = 10


def run(bench: Bench) -> Iterator[Row]:
    """One row: how many were right, and what grew."""
    place, plan = bench.place, bench.plan
    with children([["benchmarks.gpu.soaker", "make", str(place.files)]], place) as [maker]:
        maker.hear(time.monotonic() + _WITHIN)
    engine = ServedNetwork(place, {"max_batch": 4 * plan.soak_call}, FILE)
    try:
        ask = ["benchmarks.gpu.soaker", "ask", str(place.files), engine.endpoint]
        commands = [[*ask, str(number)] for number in range(plan.soak_clients)]
        with children(commands, place) as clients:
            for client in clients:
                client.hear(time.monotonic() + _WITHIN)
            _ask(clients, plan.soak_rows // _WARM_SHARE, plan.soak_call)
            [_, process, *workers] = engine.pids()
            with Watch({"engine": process, "worker": workers[0]}) as watch:
                began = time.monotonic()
                rows = _ask(clients, plan.soak_rows, plan.soak_call)
                seconds = time.monotonic() - began
            alive = engine.pids()[1:] == [process, *workers]
    finally:
        engine.close()
    grown = watch.grown()
    told = ", ".join(f"{name} {_megabytes(more)}" for name, more in grown.items())
    yield Row(
        f"{rows:,} rows, every answer right",
        round(rows / seconds, 1),
        note=f"from the first quarter to the last: {told}",
        details={
            "rows": rows,
            "seconds": round(seconds, 2),
            "grown_bytes": grown,
            "same_processes": alive,
            "samples": watch.samples,
        },
    )


def _ask(clients: list[Child], rows: int, call: int) -> int:
    """Have the clients ask for so many rows together."""
    for client in clients:
        client.say({"rows": -(-rows // len(clients)), "call": call})
    deadline = time.monotonic() + _WITHIN + rows / _ROWS_A_SECOND
    return sum(int(client.hear(deadline)["rows"]) for client in clients)


class Watch:
    """Reads memory again and again until the block is left. `samples`: seconds and bytes."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples: list[dict[str, Any]] = []

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def grown(self) -> dict[str, int | None]:
        """How much more there was in the last quarter than in the first, by name."""
        quarter = -(-len(self.samples) // 4)
        return {
            name: _difference(
                [sample[name] for sample in self.samples[:quarter]],
                [sample[name] for sample in self.samples[-quarter:]],
            )
            for name in (*self._processes, "card")
        }

    def _watch(self) -> None:
        began = time.monotonic()
        while True:
            try:
                held = {name: held_by(pid).pss for name, pid in self._processes.items()}
            except OSError:
                return  # one has ended, of which the clients will hear
            at = round(time.monotonic() - began, 2)
            self.samples.append({"s": at, **held, "card": card.used_bytes()})
            if self._over.wait(_EVERY):
                return


def _difference(first: list[int | None], last: list[int | None]) -> int | None:
    known = [[one for one in some if one is not None] for some in (first, last)]
    return int(median(known[1]) - median(known[0])) if all(known) else None


def _megabytes(size: int | None) -> str:
    return "—" if size is None else f"{size / 1e6:+.1f} MB"
