"""The run itself: an engine, clients, and kills of both, each after a while (`Kind`).

Killed clients are replaced. In the end no more is killed, every client is told to finish, and the
ledgers are judged.

A kill would hide that an answer is lost: a client that waits for longer than usual is spared, until
it has its answer, or so much time is over that the answer counts as missing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soak import digits, leftovers
from benchmarks.soak.ledger import Judgement, Reader, waits_since
from penstock import Engine
from penstock.errors import PenstockError

_ROOT = Path(__file__).resolve().parents[2]
_WORK = Path(__file__).with_name("work.py")
_PROGRESS = 5.0
_SPARED = 0.05  # of its patience: a client that has waited for longer is not killed
_LOOK_AGAIN = (0.1, 0.2)  # seconds until another client is looked at
_LAST_WORDS = 90.0


@dataclass(frozen=True)
class Kind:
    """What is soaked: a model, the digits its clients ask for if any, and seconds between kills.

    `patience`: seconds until an answer is missing. A kill of both workers costs a start of them,
    and of what is killed as it loads another one, a little later each time; that, tenfold.
    """

    name: str
    model: str
    digits: Path | None = None
    worker_pause: tuple[float, float] = (1.0, 2.0)
    client_pause: tuple[float, float] = (1.0, 2.0)
    patience: float = 10.0


def kind_of(name: str, folder: Path) -> Kind:
    """Checksums, or digits, for which a network is trained first."""
    if name == "checksum":
        return Kind(name, f"{_WORK}:checksum")
    trained = digits.train(folder)
    # A worker with TensorFlow takes seconds to start: with fewer, none would ever be ready.
    pause = (5.0, 8.0)
    return Kind(name, str(trained.network), trained.digits, worker_pause=pause, patience=60.0)


@dataclass
class Outcome:
    """Everything that was counted."""

    judgement: Judgement
    model: str = ""
    seconds: float = 0.0
    killed_workers: int = 0
    killed_clients: int = 0
    clients: int = 0
    restarts: int = 0
    deaths: int = 0
    engine_megabytes: tuple[float, float] = (0.0, 0.0)
    worker_megabytes: tuple[float, float] = (0.0, 0.0)
    faults: list[str] = field(default_factory=list)


class ClientProcess:
    """One client, its ledger and its end."""

    def __init__(self, address: Path, folder: Path, index: int, kind: Kind) -> None:
        self.ledger = folder / f"client-{index}.ledger"
        self.reader = Reader(self.ledger)
        self.killed_at: int | None = None
        self._patience = kind.patience
        self._errors = (folder / f"client-{index}.err").open("w+")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.soak.client"),
                *(str(address), str(self.ledger), str(index << 40), str(kind.patience)),
                *([str(kind.digits)] if kind.digits else []),
            ],
            stdin=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
        )

    def kill(self) -> None:
        """Kill it, wherever it is."""
        self.killed_at = time.monotonic_ns()
        self._process.kill()
        self._process.wait()
        self._finish()

    def end(self, seconds: float) -> str:
        """Let it finish what is open; returns what was wrong with that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(0.1)
                fault = f"client exited with code {code}" if code else ""
                break
            if time.monotonic() >= until or self.waits() > self._patience:
                self._process.send_signal(signal.SIGABRT)
                self._process.wait()
                fault = "client did not finish"
                break
        text = self._finish()
        return f"{fault}: {text[-2000:]}" if fault else text[-2000:]

    def waits(self) -> float:
        """For how many seconds it has had something open."""
        since = waits_since(self.ledger)
        return 0.0 if since is None else (time.monotonic_ns() - since) / 1e9

    def ended_early(self) -> bool:
        """Whether it has ended though nobody told it to."""
        return self._process.poll() is not None

    def _finish(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._errors as file:
            file.seek(0)
            return file.read().strip()


class Campaign:
    """A soak run."""

    def __init__(self, kind: Kind, folder: Path, workers: int, clients: int, seed: int) -> None:
        self._kind = kind
        self._folder = folder
        self._wanted = clients
        self._chance = random.Random(seed)
        self._clients: list[ClientProcess] = []
        self._finished: list[ClientProcess] = []
        self._counts: Counter[str] = Counter()
        self._outcome = Outcome(Judgement(kind.patience), kind.name)
        self._engine = Engine(
            kind.model,
            folder=str(folder / "run"),
            workers=workers,
            max_batch=32,
            restarts=1 << 20,
            drain_timeout=5.0,
        )

    def run(self, seconds: float, progress: Callable[[float, str], None]) -> Outcome:
        """Run for so long; `progress` is told every few seconds."""
        mark = str(self._folder)
        os.environ[leftovers.MARK] = mark
        descriptors = leftovers.descriptors()
        with self._engine:
            self._soak(seconds, progress)
            self._let_finish()
            self._measure(last=True)
        outcome = self._outcome
        for process in leftovers.wait_for_none(mark, 10):
            outcome.faults.append(f"left behind: process {process}")
        more = leftovers.descriptors() - descriptors
        if more > 0:
            outcome.faults.append(f"left behind: {more} descriptors")
        outcome.faults += [f"left behind: {path.name}" for path in (self._folder / "run").iterdir()]
        for client in self._finished:
            outcome.judgement.add(client.ledger, client.killed_at)
        return outcome

    def _soak(self, seconds: float, progress: Callable[[float, str], None]) -> None:
        began = time.monotonic()
        kind = self._kind
        next_worker = began + self._chance.uniform(*kind.worker_pause)
        next_client = began + self._chance.uniform(*kind.client_pause)
        next_progress = began + _PROGRESS
        measured = False
        while (now := time.monotonic()) < began + seconds:
            self._fill()
            if now >= next_worker:
                self._kill_worker()
                next_worker = now + self._chance.uniform(*kind.worker_pause)
            if now >= next_client:
                pause = kind.client_pause if self._kill_client() else _LOOK_AGAIN
                next_client = now + self._chance.uniform(*pause)
            if not measured and now >= began + min(10.0, seconds / 3):
                measured = True
                self._measure(last=False)
            if now >= next_progress:
                next_progress = now + _PROGRESS
                progress(now - began, self._line())
            time.sleep(0.02)
        self._outcome.seconds = time.monotonic() - began

    def _fill(self) -> None:
        for client in [client for client in self._clients if client.ended_early()]:
            self._clients.remove(client)
            self._finished.append(client)
            self._outcome.faults.append(f"client ended by itself: {client.end(1)}")
        while len(self._clients) < self._wanted:
            self._outcome.clients += 1
            number = self._outcome.clients
            self._clients.append(
                ClientProcess(self._engine.address, self._folder, number, self._kind)
            )

    def _kill_worker(self) -> None:
        pids = [worker.pid for worker in self._engine.statistics().workers if worker.pid]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                self._outcome.killed_workers += 1

    def _kill_client(self) -> bool:
        client = self._chance.choice(self._clients)
        patience = self._kind.patience
        if _SPARED * patience < client.waits() < patience:
            return False
        self._clients.remove(client)
        client.kill()
        self._finished.append(client)
        self._outcome.killed_clients += 1
        return True

    def _let_finish(self) -> None:
        until = time.monotonic() + _LAST_WORDS
        for client in self._clients:
            fault = client.end(until - time.monotonic())
            if fault:
                self._outcome.faults.append(fault)
        self._finished += self._clients
        self._clients = []

    def _measure(self, last: bool) -> None:
        """Memory of the engine and of its workers, and how often those were replaced."""
        outcome = self._outcome
        try:
            now = self._engine.statistics()
        except (PenstockError, TimeoutError) as error:
            outcome.faults.append(f"the engine does not answer: {error}")
            return
        engine = leftovers.megabytes(now.pid)
        worker = max(leftovers.megabytes(worker.pid) for worker in now.workers)
        if not last:
            outcome.engine_megabytes = (engine, engine)
            outcome.worker_megabytes = (worker, worker)
            return
        outcome.engine_megabytes = (outcome.engine_megabytes[0], engine)
        outcome.worker_megabytes = (outcome.worker_megabytes[0], worker)
        outcome.restarts, outcome.deaths = now.restarts, now.deaths
        busy = sum(client.outstanding for client in now.clients)
        if busy or now.requests.queued:
            outcome.faults.append(f"{busy} requests outstanding, {now.requests.queued} queued")

    def _line(self) -> str:
        for client in (*self._clients, *self._finished):
            self._counts += client.reader.new_counts()
        counts = ", ".join(
            f"{count:,} {name}" for name, count in self._counts.items() if name != "asked" and count
        )
        outcome = self._outcome
        return (
            f"{outcome.killed_workers} workers, {outcome.killed_clients} clients killed; {counts}"
        )
