"""What an engine and its workers log: lines to the standard error, for which nobody waits.

Standard error is whatever the owner has. A pipe that nobody reads, or a terminal that was stopped,
takes no more at some time, and whoever writes to it then hangs: an engine, and with it all of its
clients. It cannot be made non-blocking, as the owner's own standard error is the same open file. So
lines are handed to a thread, and only that one waits. Lines that it cannot take are dropped, and
how many they were is told as soon as there is room again. At a process's end, what waits has a
moment to be written.

What a model's code logs in a worker goes the same way; what it prints does not, and may wait. A
child that it forks writes its own lines itself.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any

STANDARD_ERROR = 2
_MOST_BYTES = 256 << 10  # that wait to be written
_FAREWELL = 0.5  # seconds


def begin(who: str) -> None:
    """From now on, what this process logs is written so, the error that ends it included."""
    journal = Journal(STANDARD_ERROR)
    logging.basicConfig(
        level=log_level(),
        format=f"%(asctime)s penstock {who}: %(levelname)s: %(message)s",
        handlers=[journal],
    )
    sys.excepthook = _last_words
    os.register_at_fork(after_in_child=journal.in_child)


def log_level() -> str:
    """What a started process logs: `$PENSTOCK_LOG`, where that is a level."""
    level = os.environ.get("PENSTOCK_LOG", "").upper()
    return level if level in logging.getLevelNamesMapping() else "WARNING"


def _last_words(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    log = logging.getLogger("penstock")
    log.critical("ended by an error:", exc_info=(kind, error, traceback))


class Journal(logging.Handler):
    """Writes to a descriptor by a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._change = threading.Condition()
        self._waiting: deque[bytes] = deque()  # the first of them is being written
        self._bytes = 0
        self._dropped = 0
        self._forked = False
        self._thread = self._started()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over, or drop it."""
        line = self._line(record)
        if self._forked:
            self._write(line)
            return
        with self._change:
            if self._bytes + len(line) > _MOST_BYTES:
                self._dropped += 1
                return
            self._tell_dropped()
            self._add(line)
            if self._thread is None:
                self._thread = self._started()

    def flush(self) -> None:
        """Give what waits a moment."""
        until = time.monotonic() + _FAREWELL
        with self._change:
            while self._waiting and self._thread and (left := until - time.monotonic()) > 0:
                self._change.wait(left)

    def in_child(self) -> None:
        """After a fork: what waits is the parent's affair, and so is its thread."""
        self._change = threading.Condition()
        self._waiting.clear()
        self._forked = True

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # a wrong call of a model's: it has its own words at least
            text = f"{record.msg!r} % {record.args!r}: {type(error).__name__}: {error}"
        return text.encode(errors="backslashreplace") + b"\n"

    def _started(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._work, name="penstock-journal", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads now; with the next line it is tried
            return None
        return thread

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._waiting:
                    self._change.wait()
                line = self._waiting[0]
            written = self._write(line)
            with self._change:
                self._waiting.popleft()
                self._bytes -= len(line)
                self._dropped += not written
                if written and not self._waiting:
                    self._tell_dropped()
                self._change.notify_all()

    def _add(self, line: bytes) -> None:
        self._waiting.append(line)
        self._bytes += len(line)
        self._change.notify_all()

    def _tell_dropped(self) -> None:
        if self._dropped:
            count, self._dropped = self._dropped, 0
            notice: dict[str, Any] = {
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": "%d lines of this log were dropped: they could not be written in time",
                "args": (count,),
            }
            self._add(self._line(logging.makeLogRecord(notice)))

    def _write(self, line: bytes) -> bool:
        """Write a line, however long that takes; returns whether it could be."""
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # the owner has made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:  # nobody can read it any more
                return False
        return True
