"""Clients' segments, pinned: a GPU's copy engine reads them by itself, without the CPU.

Pinning takes milliseconds for what a client brings, so a thread of its own does it. Until it has,
and beyond the limit, the same copies work all the same: the driver then moves the bytes through a
buffer of its own. What was beyond the limit is pinned when others have gone. A segment is unpinned
by the same thread, in the order of the engine's messages: after the last batch that used it,
whatever became of its client. Unpinning under a copy could poison the process's CUDA context.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from penstock.transport import segment
from penstock.worker.cuda import Cuda
from penstock.worker.memory import MappedSegments

_log = logging.getLogger(__name__)


class PinnedSegments(MappedSegments):
    """Mapped segments that are pinned as soon as may be, up to a number of bytes."""

    def __init__(self, cuda: Cuda, limit: int) -> None:
        super().__init__()
        self._cuda = cuda
        self._limit = limit
        self._pinned: dict[int, int] = {}  # the bytes at each address
        self._waiting: dict[int, segment.Mapping] = {}  # beyond the limit, by address
        self._tasks: SimpleQueue[tuple[bool, segment.Mapping]] = SimpleQueue()
        threading.Thread(target=self._work, name="penstock-pinning", daemon=True).start()

    @property
    def pinned_bytes(self) -> int:
        """How much is pinned now."""
        return sum(self._pinned.values())

    def _mapped(self, mapping: segment.Mapping) -> None:
        self._tasks.put((True, mapping))

    def _unmapped(self, mapping: segment.Mapping) -> None:
        self._tasks.put((False, mapping))

    def _work(self) -> None:
        while True:
            wanted, mapping = self._tasks.get()
            if wanted:
                self._pin(mapping)
            else:
                self._unpin(mapping)
                for waiting in list(self._waiting.values()):
                    self._pin(waiting)
            del mapping

    def _pin(self, mapping: segment.Mapping) -> None:
        if self.pinned_bytes + mapping.size > self._limit:
            _log.info("%d bytes are not pinned yet: the limit is %d", mapping.size, self._limit)
            self._waiting[mapping.address] = mapping
            return
        self._waiting.pop(mapping.address, None)
        error = self._cuda.pin(mapping.address, mapping.size)
        if error:
            _log.warning("%d bytes could not be pinned: %s", mapping.size, error)
        else:
            self._pinned[mapping.address] = mapping.size

    def _unpin(self, mapping: segment.Mapping) -> None:
        self._waiting.pop(mapping.address, None)
        if self._pinned.pop(mapping.address, 0):
            error = self._cuda.unpin(mapping.address)
            if error:
                _log.warning("%d bytes could not be unpinned: %s", mapping.size, error)
        mapping.close()
