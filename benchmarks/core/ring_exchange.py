"""A client that nobody serves: it does its part of each request, then it is the next one's turn.

For each of its rows it checks an answer, makes a fresh row and copies it to where a worker would
read it. There is one turn in each ring. Whoever has it when the load is over sends the end round
instead, and has it back when all have left.
"""

import os
import time
from pathlib import Path

import numpy as np

from benchmarks.core.stopwatch import Recorder
from benchmarks.core.work import ANSWER_WORDS, ROW_BYTES
from benchmarks.core.workload import Rows

_TURN, _END = b"t", b"e"


class RingExchange:
    """One client process. It stays on the core of its ring."""

    def __init__(self, folder: str, number: int, outstanding: int) -> None:
        clients = len(list(Path(folder).iterdir()))
        cores = sorted(os.sched_getaffinity(0))[: max(1, clients // 2)]
        ring = number % len(cores)
        os.sched_setaffinity(0, [cores[ring]])
        following = number + len(cores)
        self._mine = os.open(Path(folder, str(number)), os.O_RDWR)
        self._next = os.open(
            Path(folder, str(following if following < clients else ring)), os.O_RDWR
        )
        self._begins = number == ring
        self._outstanding = outstanding
        self._answers = np.zeros((outstanding, ANSWER_WORDS), np.uint64)
        self._copies = np.zeros((outstanding, ROW_BYTES), np.uint8)

    def run(self, rows: Rows, recorder: Recorder) -> None:
        slots = range(recorder.outstanding or self._outstanding)
        for slot in slots:
            self._send(rows, slot)
        sent_at = time.monotonic_ns()
        if self._begins:
            os.write(self._mine, _TURN)
        while True:
            said = os.read(self._mine, 1)
            if said == _END:
                os.write(self._next, _END)
                return
            goes_on = True
            for slot in slots:
                rows.check(slot, self._answers[slot])
                goes_on = recorder.finished(sent_at, time.monotonic_ns()) and goes_on
                self._send(rows, slot)
            sent_at = time.monotonic_ns()
            if not goes_on:
                os.write(self._next, _END)
                os.read(self._mine, 1)
                return
            os.write(self._next, _TURN)

    def _send(self, rows: Rows, slot: int) -> None:
        self._copies[slot] = rows.fresh(slot)
        rows.answer_into(slot, self._answers[slot])

    def close(self) -> None:
        os.close(self._mine)
        os.close(self._next)
