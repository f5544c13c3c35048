"""Restarts, hangs and blame: what happens when a worker does not do what it should.

- Before any worker was ever ready, one that cannot load ends the engine, with its reason. Later, it
  is tried again, within the restart budget.
- One that runs out of a GPU's memory as it loads may have left that in pieces, which only its exit
  gives back: another begins at once, which knows what did not fit, twice.
- One for which no process can be started (there may be too many, or too many open files) counts as
  one that ended while it loaded.
- A batch that runs too long, or a process that was stopped, gets its worker killed; the rest
  follows from the exit.
- When a worker exits, the batches that it was running (one for each of its hands) are under
  suspicion, those behind them are not: they go back to the front of the queue. Suspects are run row
  by row, alone. Only a row that kills its worker while it is alone ends with `WorkerLost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.devices.limit import SQUEEZES
from penstock.engine.workers import Batch, RestartBudget, Worker, WorkerState
from penstock.errors import Kind
from penstock.scheduling.queue import Job
from penstock.transport import messages as m

if TYPE_CHECKING:
    from penstock.engine.core import Core


_EXIT_GRACE = 2_000_000_000  # nanoseconds for a worker that has closed its connection to exit
_LOOK = 250_000_000  # nanoseconds between looks at workers that are busy or loading


class Health:
    """Supervises the workers of a core."""

    def __init__(self, core: Core) -> None:
        config = core.config
        self._core = core
        self._budget = RestartBudget(config.restarts, int(config.restart_refill * 1e9))
        self._run_limit = int(config.run_timeout * 1e9)
        self._load_limit = int(config.load_timeout * 1e9)
        self._load_failures = 0
        self._was_ready = False
        self.hopeless = ""
        self.deaths = 0
        self.due: int | None = 0  # when to look at the workers next

    @property
    def restarts(self) -> int:
        """How many workers were started to replace another."""
        return sum(max(worker.starts - 1, 0) for worker in self._core.workers)

    def ready(self) -> list[Worker]:
        """The workers that can be given batches."""
        return [worker for worker in self._core.workers if worker.state is WorkerState.READY]

    def nobody_left(self) -> bool:
        """Whether every worker is down: nothing runs unless one is started."""
        return all(worker.state is WorkerState.DOWN for worker in self._core.workers)

    def loaded(self, worker: Worker, hands: int, now: int) -> None:
        """A worker can be given batches."""
        if worker.state is not WorkerState.STARTING:
            return  # it was killed a moment ago
        worker.loaded(now, hands)
        self._load_failures = 0
        self.hopeless = ""
        if not self._was_ready and all(w.state is WorkerState.READY for w in self._core.workers):
            self._was_ready = True
            if self._core.state[0] == m.STATE_LOADING:
                self._core.announce(m.STATE_READY)

    def start(self, worker: Worker, now: int) -> None:
        """Start a process for a worker; if there can be none, it is as if it had ended at once."""
        try:
            worker.started(self._core.effects.start_worker(worker.index), now)
        except OSError as error:
            worker.started(0, now)
            worker.load_error = (
                Kind.MODEL_LOAD,
                f"no process can be started for worker {worker.index}: {error} "
                "(is there room for more processes and files: ulimit -u, ulimit -n?)",
            )
            self.exited(worker, "", now)

    def supervise(self, now: int) -> None:
        """Kill what hangs, restart what is due."""
        for worker in self._core.workers:
            if worker.state is WorkerState.READY:
                if worker.batches and now - worker.oldest_since > self._run_limit:
                    seconds = self._run_limit / 1e9
                    self.kill(worker, f"a batch ran for more than {seconds:g} s")
            elif worker.state is WorkerState.STARTING:
                if now - worker.since > self._load_limit:
                    self.kill(worker, f"loading took more than {self._load_limit / 1e9:g} s")
            elif worker.state is WorkerState.ENDING:
                if now - worker.since > _EXIT_GRACE:
                    self._core.effects.kill_worker(worker.index)
            elif (
                worker.restart_at is not None
                and worker.restart_at <= now
                and self._core.drain_until is None
            ):
                self.start(worker, now)
        self.due = self._next_look(now)

    def _next_look(self, now: int) -> int | None:
        soonest: int | None = None
        for worker in self._core.workers:
            look: int | None = now + _LOOK
            if worker.state is WorkerState.DOWN:
                look = worker.restart_at if self._core.drain_until is None else None
            elif worker.state is WorkerState.READY and not worker.batches:
                continue
            if look is not None and (soonest is None or look < soonest):
                soonest = look
        return soonest

    def busy(self, now: int) -> None:
        """A worker was given a batch: look after it from now on."""
        if self.due is None:
            self.due = now + _LOOK

    def kill(self, worker: Worker, reason: str) -> None:
        """End a worker that does not work. What it had is dealt with when its exit is seen."""
        if worker.state in (WorkerState.STARTING, WorkerState.READY):
            worker.ending(reason)
            self._core.effects.kill_worker(worker.index)

    def let_go(self, worker: Worker, now: int) -> None:
        """A worker has closed its connection: it is exiting, or will be killed."""
        if worker.state in (WorkerState.STARTING, WorkerState.READY):
            worker.ending("")
            worker.since = now
            self.due = now

    def says_why(self, worker: Worker) -> bool:
        """Whether the error with which the engine is about to end, or does, tells of its end."""
        if self._was_ready:
            return False
        return worker.load_error is not None or self._core.state[0] == m.STATE_FAILED

    def exited(self, worker: Worker, how: str, now: int) -> None:
        """A worker's process is gone, and everything that it had sent was read."""
        core = self._core
        how = worker.kill_reason or how
        batches = worker.exited(now)
        self.due = now
        worker.mapped.clear()
        self._reassign(batches, worker.hands, how)
        if core.state[0] in (m.STATE_CLOSING, m.STATE_FAILED):
            worker.restart_at = None
            return
        self.deaths += 1
        if self._squeeze(worker):
            worker.restart_at = now
            worker.replaced = True
            return
        worker.squeezed = 0
        if not self._was_ready:
            self._give_up(worker, how)
            return
        if not worker.serving:
            self._load_failures += 1
        worker.restart_at = self._budget.next_restart(now, self._load_failures)
        worker.replaced = not self._budget.used_up
        if not any(map(_serves_or_will, core.workers)):
            cause = worker.load_error[1] if worker.load_error else how
            self.hopeless = (
                f"all workers are down and {self._budget.size} restarts did not help; "
                f"the last one: {cause}"
            )
            for job in core.batcher.clear():
                core.settling.fail(job, Kind.NO_WORKERS, self.hopeless)

    def _squeeze(self, worker: Worker) -> bool:
        """Whether another is to begin in its place at once, as it ran out of a card's memory."""
        kind, _ = worker.load_error or (None, "")
        if kind != Kind.DEVICE_MEMORY or not worker.on_gpu or worker.squeezed >= SQUEEZES:
            return False
        worker.squeezed += 1
        return True

    def _give_up(self, worker: Worker, how: str) -> None:
        kind, text = worker.load_error or (
            Kind.MODEL_LOAD,
            f"the worker ended while it loaded the model: {how}",
        )
        self._core.announce(m.STATE_FAILED, kind, text)
        for other in self._core.workers:
            other.restart_at = None
            self.kill(other, "another worker could not load the models")

    def _reassign(self, batches: list[Batch], hands: int, how: str) -> None:
        core = self._core
        for batch in batches:
            core.apart.close_those_of(batch)
        for batch in reversed(batches[hands:]):
            for job in reversed(batch.jobs):
                if core.settling.came_back(job):
                    for part in core.settling.wanted_of(job):
                        core.batcher.add(part, again=True)
        for batch in batches[:hands]:
            for job in batch.jobs:
                if core.settling.came_back(job):
                    for part in core.settling.wanted_of(job):
                        self._blame(part, how)

    def _blame(self, job: Job, how: str) -> None:
        core = self._core
        if job.suspect:
            text = f"the worker ended while it ran this row alone: {how}"
            core.settling.fail(job, Kind.WORKER_LOST, text)
        elif not job.lane.batched:
            text = f"the worker ended while it ran this request, which may not be repeated: {how}"
            core.settling.fail(job, Kind.WORKER_LOST, text)
        else:
            request = job.owner
            request.jobs.remove(job)
            for row in range(job.start, job.start + max(job.rows, 1)):
                single = Job(
                    request,
                    job.lane,
                    min(job.rows, 1),
                    start=row,
                    fairness=job.fairness,
                    priority=job.priority,
                    deadline=job.deadline,
                )
                request.jobs.append(single)
                core.batcher.suspect(single)


def _serves_or_will(worker: Worker) -> bool:
    """Whether a worker takes batches, or will without waiting for the budget to be refilled."""
    if worker.state is WorkerState.DOWN:
        return worker.replaced and worker.restart_at is not None
    return worker.state is not WorkerState.ENDING
