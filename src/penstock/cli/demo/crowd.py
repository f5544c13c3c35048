"""Eight processes that ask for one image at a time: started, measured and ended together.

All are started at once. Then all ask, first for a moment that does not count, so that everything
that happens once has happened; what is answered in the seconds after that is measured, the same
seconds for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.cli.demo.child import Child, end_all, hear
from penstock.cli.demo.machine import have_tensorflow, taken_by
from penstock.cli.demo.records import Agreement, Way
from penstock.errors import PenstockError

_READY_LIMIT = 600.0
_ANSWER_LIMIT = 120.0
_UNCOUNTED = 1.0

Advance = Callable[[float], None]


class Task(NamedTuple):
    """What a crowd is to do. `digits`: the file of images; `held_out`: how many there are."""

    processes: int
    seconds: float
    digits: Path
    held_out: int
    folder: Path


class Crowd:
    """The processes. `way`: predict, compiled or penstock; `place`: the network, or the engine."""

    def __init__(self, task: Task, way: str, place: str) -> None:
        self._task = task
        self._children: list[Child] = []
        self._began = time.monotonic()
        try:
            for number in range(task.processes):
                settings = {
                    "way": way,
                    "place": place,
                    "digits": str(task.digits),
                    "first": number * task.held_out // task.processes,
                }
                log = task.folder / f"{way}-{number}.log"
                self._children.append(Child("penstock.cli.demo.asker", settings, log))
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [child.process.pid for child in self._children]

    def wait_ready(self, advance: Advance) -> float:
        """Wait until each has had its first answer; seconds since the first was started."""
        advance(0)
        told = self._one_of_each(_READY_LIMIT, lambda heard: advance(heard))
        last: float = max(each["ready"] for each in told)
        return last - self._began

    def measure(self, name: str, start: float, others: list[int], advance: Advance) -> Way:
        """Let them ask, and measure. `others`: processes that belong to this way, too."""
        seconds = self._task.seconds
        begin = time.monotonic() + min(_UNCOUNTED, seconds)
        for child in self._children:
            child.say({"begin": begin, "end": begin + seconds})
        limit = begin + seconds - time.monotonic() + _ANSWER_LIMIT
        told = self._one_of_each(
            limit,
            meanwhile=lambda: advance(min(seconds, max(0.0, time.monotonic() - begin))),
        )
        advance(seconds)
        latencies = np.concatenate([each["latencies"] for each in told]) * 1e3
        if not len(latencies):
            raise PenstockError(
                f"{name}: no answer came in {seconds:g} s; give it more with --seconds"
            )
        pids = [*self.pids, *others]
        return Way(
            name=name,
            answers_per_second=len(latencies) / seconds,
            p50_ms=float(np.percentile(latencies, 50)),
            p99_ms=float(np.percentile(latencies, 99)),
            start_seconds=start,
            memory_bytes=taken_by(pids),
            processes=len(pids),
            with_tensorflow=have_tensorflow(pids),
            answers=len(latencies),
            agreement=Agreement(
                compared=sum(each["compared"] for each in told),
                same_class=sum(each["same_class"] for each in told),
                largest_difference=max(each["largest_difference"] for each in told),
            ),
        )

    def end(self) -> None:
        """End every process."""
        end_all(self._children)

    def _one_of_each(
        self,
        limit: float,
        advance: Callable[[int], None] = lambda heard: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[dict[str, Any]]:
        """What each says next."""
        told: dict[int, dict[str, Any]] = {}
        for number, value in hear(self._children, limit, meanwhile):
            told[number] = value
            advance(len(told))
            if len(told) == len(self._children):
                break
        return list(told.values())
