"""multiprocessing.Queue, the usual recipe: one request queue, one answer queue a client.

The server blocks for a first request, takes what else is there up to its largest batch without
waiting, and answers each. Queues cannot be handed to a process that is not a child, so one host
process starts server and clients and speaks for all of them:

    python -m benchmarks.core.systems.mp_queue SETTINGS CLIENTS OUTSTANDING
"""

import contextlib
import json
import multiprocessing
import queue
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.core.client import measure, serve_schedules
from benchmarks.core.processes import Workspace
from benchmarks.core.stopwatch import Recorder, Schedule
from benchmarks.core.systems.interface import Load, Settings
from benchmarks.core.work import answer
from benchmarks.core.workload import Rows

Queue = Any
Pipe = Any


class MpQueue:
    """The queue; its endpoint is its settings, since the clients' host brings the server along."""

    name = "mp_queue"
    title = "multiprocessing.Queue"

    def sweep(self, quick: bool) -> list[Settings]:
        sizes = (1, 16) if quick else (1, 2, 4, 8, 16, 32)
        return [{"max_batch": size} for size in sizes]

    @contextlib.contextmanager
    def serve(self, settings: Settings, workspace: Workspace) -> Iterator[str]:
        yield json.dumps(settings)

    def client_commands(self, endpoint: str, load: Load) -> list[list[str]]:
        return [[__name__, endpoint, str(load.clients), str(load.outstanding)]]


class QueueExchange:
    """One client of the queues."""

    def __init__(self, number: int, outstanding: int, requests: Queue, answers: Queue) -> None:
        self._number = number
        self._outstanding = outstanding
        self._requests = requests
        self._answers = answers

    def run(self, rows: Rows, recorder: Recorder) -> None:
        sent_at = [0] * self._outstanding

        def send(slot: int) -> None:
            row = rows.fresh(slot)
            sent_at[slot] = time.monotonic_ns()
            self._requests.put((self._number, slot, row))

        for slot in range(self._outstanding):
            send(slot)
        waiting = self._outstanding
        while waiting:
            slot, result = self._answers.get()
            now = time.monotonic_ns()
            rows.check(slot, result)
            if recorder.finished(sent_at[slot], now):
                send(slot)
            else:
                waiting -= 1

    def close(self) -> None:
        self._requests.close()


def serve(requests: Queue, answers: list[Queue], max_batch: int) -> None:
    """The server process."""
    while True:
        batch = [requests.get()]
        with contextlib.suppress(queue.Empty):
            while len(batch) < max_batch:
                batch.append(requests.get_nowait())
        results = answer(np.stack([row for _, _, row in batch]))
        for (client, slot, _), result in zip(batch, results, strict=True):
            answers[client].put((slot, result))


def run_client(number: int, outstanding: int, requests: Queue, answers: Queue, pipe: Pipe) -> None:
    """A client process: runs every schedule that comes through its pipe."""
    rows = Rows(number, outstanding)
    exchange = QueueExchange(number, outstanding, requests, answers)
    pipe.send("ready")
    while True:
        pipe.send(measure(exchange, rows, Schedule(**pipe.recv())))


def main() -> None:
    settings, clients, outstanding = (json.loads(argument) for argument in sys.argv[1:])
    spawn = multiprocessing.get_context("spawn")
    requests = spawn.Queue()
    answers = [spawn.Queue() for _ in range(clients)]
    pipes = []
    spawn.Process(
        target=serve, args=(requests, answers, settings["max_batch"]), daemon=True
    ).start()
    for number in range(clients):
        pipe, end = spawn.Pipe()
        pipes.append(pipe)
        spawn.Process(
            target=run_client,
            args=(number, outstanding, requests, answers[number], end),
            daemon=True,
        ).start()
        end.close()
    for pipe in pipes:
        pipe.recv()

    def run(schedule: Schedule) -> list[dict[str, Any]]:
        for pipe in pipes:
            pipe.send(asdict(schedule))
        return [pipe.recv() for pipe in pipes]

    serve_schedules(run)


if __name__ == "__main__":
    main()
