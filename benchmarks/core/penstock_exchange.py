"""A client of Penstock through its public face: every row its own request and its own future."""

import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import penstock
from benchmarks.core.stopwatch import Recorder
from benchmarks.core.workload import Rows


class PenstockExchange:
    """One client process: up to `outstanding` futures, the oldest awaited first."""

    def __init__(self, endpoint: str, outstanding: int) -> None:
        self._client = penstock.connect(endpoint, wait=60)
        self._outstanding = outstanding

    def run(self, rows: Rows, recorder: Recorder) -> None:
        submit = self._client.submit
        pending: deque[tuple[int, int, Future[Any]]] = deque()
        for slot in range(recorder.outstanding or self._outstanding):
            pending.append((slot, time.monotonic_ns(), submit(rows.fresh(slot)[None])))
        while pending:
            slot, sent_at, future = pending.popleft()
            answer = future.result()
            now = time.monotonic_ns()
            rows.check(slot, answer)
            if recorder.finished(sent_at, now):
                row = rows.fresh(slot)[None]
                pending.append((slot, time.monotonic_ns(), submit(row)))

    def close(self) -> None:
        self._client.close()
