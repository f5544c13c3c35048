"""Loaders: processes that decode, as many as keep the device busy, up to a limit.

Begins with a quarter of them. More are added while the device has nothing to do and those that
there are have not enough rows for it: as many as would keep it busy if each did as much as those
that there are, but at most four times as many at once. One that dies is replaced, and its parts are
done again, with care (`deaths`). `shelves` says who gets which part.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock import launch
from penstock.errors import from_message
from penstock.offline.crew import Events
from penstock.offline.cut import PARTS_AHEAD
from penstock.offline.deaths import Care, Deaths
from penstock.offline.labour import Broken, Finished
from penstock.offline.shelves import Shelves
from penstock.offline.stages import STARVED, since
from penstock.offline.threads import Thread

_MODULE = "penstock.offline.loader"
_IDLE = 0.85  # the device is busy for less than that: it could do more
_TIMES = 4  # as many as before, at most, after one look
_HUNGRY = 0.25  # of the time that a loader's sender waits for rows
_SETTLE = 1.0  # seconds that a new one has to show what it changes
_EXIT_LIMIT = 5.0


class Loader:
    """One process, the parts it has, and its last news."""

    def __init__(self, settings: str, lock: int, told: Any) -> None:
        self.open: list[int] = []
        self.stages: dict[str, float] = {}
        self.answered = 0
        self.reading: tuple[int, int] | None = None  # part and row, where it reads one alone
        launch.open_standard()
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        self._news, news = os.pipe2(os.O_CLOEXEC)
        owner = os.pidfd_open(os.getpid())
        descriptors = {"orders": orders, "news": news, "owner": owner, "lock": lock}
        try:
            self.process: subprocess.Popen[bytes] = launch.start(
                _MODULE, settings, descriptors, detached=False, log=2
            )
        finally:
            for descriptor in (orders, news, owner):
                os.close(descriptor)
        self._reader = Thread(self._listen, "news", told)
        self._reader.start()

    def assign(self, part: int, care: Care | None = None) -> None:
        """One more part. A dead one is found out by its news."""
        self.open.append(part)
        order = {"part": part, "care": None if care is None else list(care.items())}
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, json.dumps(order).encode() + b"\n")

    def end(self, patience: float) -> None:
        """No more orders; kill it when it does not end."""
        with contextlib.suppress(OSError):
            os.close(self._orders)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def _listen(self, told: Any) -> None:
        with os.fdopen(self._news) as news:
            for line in news:
                told(self, json.loads(line))
        told(self, None)


class LoaderCrew:
    """A crew of processes. `settings`: what each is started with; `parts`: how many there are;
    `run`: how many of them are read together."""

    def __init__(
        self,
        settings: str,
        lock: int,
        most: int,
        events: Events,
        parts: int | None = None,
        run: int = 1,
    ) -> None:
        self.events = events
        self._most = most
        self._settings, self._lock = settings, lock
        self._mutex = threading.Lock()
        self._shelves = Shelves(run)
        self._deaths = Deaths()
        self._past: list[dict[str, float]] = []
        self._before: dict[Loader, dict[str, float]] = {}
        self._looked = self._added = time.monotonic()
        self._closing = False
        self._lost: queue.SimpleQueue[Loader] = queue.SimpleQueue()
        begin = most // _TIMES if parts is None else min(most // _TIMES, parts)
        self._loaders: list[Loader] = [self._start() for _ in range(max(begin, 1))]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._loaders)

    def fill(self, todo: Iterator[int]) -> int:
        """Two parts for each, those of the dead first."""
        self._replace()
        for _ in range(PARTS_AHEAD):
            for loader in self._loaders:
                if len(loader.open) >= PARTS_AHEAD:
                    continue
                part = self._shelves.take(loader, todo)
                if part is None:
                    break
                loader.assign(part, self._deaths.care(part))
        return sum(len(loader.open) for loader in self._loaders)

    def recorded(self, part: int) -> None:
        """Whoever had it has room for another."""
        self._deaths.done(part)
        for loader in self._loaders:
            if part in loader.open:
                loader.open.remove(part)

    def stages(self) -> list[dict[str, float]]:
        """Of all that there were."""
        return [*self._past, *(loader.stages for loader in self._loaders)]

    def answered(self) -> int:
        """Of those that there are."""
        return sum(loader.answered for loader in self._loaders)

    def adapt(self, device: float) -> None:
        """One more, while the device idles because all of them are behind."""
        now = time.monotonic()
        if now - self._added < _SETTLE:
            self._remember(now)
            return
        passed = now - self._looked
        hungry = all(
            since(loader.stages, self._before.get(loader, {})).get(STARVED, 0.0) > _HUNGRY * passed
            for loader in self._loaders
        )
        self._remember(now)
        if device < _IDLE and hungry and len(self._loaders) < self._most:
            count = len(self._loaders)
            wanted = math.ceil(count * min(_IDLE / max(device, 1e-9), _TIMES))
            for _ in range(min(max(wanted, count + 1), self._most) - count):
                self._loaders.append(self._start())
            self._added = now

    def close(self) -> None:
        """End all of them; those with work are not waited for."""
        self._closing = True
        for loader in self._loaders:
            loader.end(0.0 if loader.open else _EXIT_LIMIT)

    def _start(self) -> Loader:
        return Loader(self._settings, self._lock, self._told)

    def _remember(self, now: float) -> None:
        self._before = {loader: dict(loader.stages) for loader in self._loaders}
        self._looked = now

    def _told(self, loader: Loader, news: dict[str, Any] | None) -> None:
        """In the loader's listening thread."""
        if news is None:
            if not self._closing:
                self._lost.put(loader)
            return
        loader.stages, loader.answered = news["stages"], news["answered"]
        if "reading" in news:
            part, row = news["reading"]
            loader.reading = None if row is None else (part, row)
        elif "finished" in news:
            self.events.put(Finished(news["finished"], news["rows"], news["facts"]))
        elif "errno" in news:
            error: Exception = OSError(news["errno"], news["error"], news["path"] or None)
            self.events.put(Broken(error))
        elif "error" in news:
            self.events.put(Broken(from_message(news["kind"], news["error"])))

    def _replace(self) -> None:
        """Those that died, when all that they had told is dealt with: a part that one of them had
        finished must be published before another writes it anew."""
        while not self._lost.empty() and self.events.empty():
            loader = self._lost.get()
            code = loader.process.wait()
            self._loaders.remove(loader)
            self._past.append(loader.stages)
            self._shelves.give_back(loader, loader.open)
            loader.end(0.0)
            self._deaths.learn(loader.open, loader.reading, launch.exit_text(code))
            self._loaders.append(self._start())
