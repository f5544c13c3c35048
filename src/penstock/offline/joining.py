"""The output, made of parts while later ones are still on their way.

Joining reads and writes every row once more. In a thread of its own it does so beside the device's
work, part by part in their order, and syncs what it has when it has to wait. So at the end of a job
only the last parts are left. What is joined so far lies under the output's temporary name, and
counts for nothing: a run that goes on joins from the first part again. Parts that cannot be joined
end the job as soon as that is known. Where anything else fails, it is dropped, and the parts are
joined at the end, by whoever can tell of what is wrong.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from queue import SimpleQueue
from typing import IO

from penstock.data.atomic import staged
from penstock.data.files import is_local
from penstock.errors import InputError
from penstock.offline.parts import Facts, PartStore
from penstock.offline.place import Place
from penstock.offline.threads import Thread

_log = logging.getLogger(__name__)


class _Dropped(Exception):
    """Nobody wants it any more."""


class Joining:
    """One output. Only where it lies on this machine, and not for the parts of a shard."""

    def __init__(self, place: Place, store: PartStore) -> None:
        self._place, self._store = place, store
        self._possible = is_local(place.out) and not place.shard
        self._waiting: dict[int, Facts] = {}
        self._next = 0
        self._paths: SimpleQueue[str | type[_Dropped] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._whole = False
        self._refused: InputError | None = None

    def add(self, part: int, facts: Facts) -> None:
        """A part is recorded; it is joined when all before it are.

        Raises `InputError` when some before it cannot be.
        """
        if self._refused is not None:
            raise self._refused
        if not self._possible:
            return
        self._waiting[part] = facts
        while (found := self._waiting.pop(self._next, None)) is not None:
            for path in self._store.paths({self._next: found}):
                self._paths.put(path)
                self._begin()
            self._next += 1

    def finish(self) -> bool:
        """All parts were added. Whether the output is whole now, under its temporary name."""
        return self._end(None)

    def drop(self) -> None:
        """The job ends otherwise. After `finish`, nothing."""
        self._end(_Dropped)

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = Thread(self._join, "joining")
            self._thread.start()

    def _end(self, last: type[_Dropped] | None) -> bool:
        if self._thread is not None:
            self._paths.put(last)
            self._thread.join()
            self._thread, self._possible = None, False
        return self._whole and not self._waiting

    def _join(self) -> None:
        try:
            with staged(self._place.out) as file:
                self._place.sink.join(self._arrivals(file), file)
            self._whole = True
        except _Dropped:
            pass
        except InputError as error:
            self._refused = error
        except Exception as error:
            _log.info("parts are joined at the end: %s", error)

    def _arrivals(self, file: IO[bytes]) -> Iterator[str]:
        while True:
            if self._paths.empty():
                file.flush()
                os.fdatasync(file.fileno())
            path = self._paths.get()
            if path is None:
                return
            if not isinstance(path, str):
                raise path
            yield path
