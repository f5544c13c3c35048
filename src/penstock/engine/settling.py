"""How requests end: answered by a worker, failed, or wanted by nobody any more.

- A batch came back (`batch_ran`). The usual one is answered as a whole, and so is each of its
  requests. The others are told row by row, by what the worker has said of its items before
  (`Batch.outcomes`).
- A worker died, and its jobs come back undone (`came_back`): `Health` knows what becomes of them.
- A job ends with an error that no worker has told (`fail`).
- A caller has lost interest (`cancel`; in a series, `drop`): what waits ends now, what runs when it
  comes back.

Rows of a series end at once, each with its own message; those of other requests when all are
settled. The messages are those of `answers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.requests import PartRecord, Request, Series
from penstock.engine.workers import Batch, Worker
from penstock.errors import Kind
from penstock.scheduling.queue import Job
from penstock.spec import Signature
from penstock.transport import messages as m

if TYPE_CHECKING:
    from penstock.engine.core import Core


class Settling:
    """Ends the requests of a core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def batch_ran(self, worker: Worker, batch: Batch, layout: int) -> None:
        """A batch came back: with answers of this layout, or (0) with what its items say."""
        if not layout:
            self._in_parts(batch)
            return
        core = self._core
        signature = worker.output_layouts[layout]
        for job in batch.jobs:
            request = job.owner
            if request.answered(job.rows):
                if request.segment.unuse():
                    core.release(request.segment)
                core.answers.done(request, signature)
            elif self.came_back(job):
                self._answered(job, signature)

    def _answered(self, job: Job, signature: Signature) -> None:
        """Some rows of a request have their answers, in its slot."""
        request = job.owner
        answers = self._core.answers
        if isinstance(request, Series):
            answers.done_rows(request, job.start, job.rows, signature)
            request.end_rows(job.rows)
            return
        request.parts.append(PartRecord(job.start, job.rows, signature, 0, -1))
        if request.settled(job.rows):
            answers.finish(request)

    def _in_parts(self, batch: Batch) -> None:
        core = self._core
        outcomes: list[list[PartRecord | m.ItemFailed]] = [[] for _ in batch.jobs]
        for item, outcome in batch.outcomes:
            outcomes[item].append(outcome)
        for job, own in zip(batch.jobs, outcomes, strict=True):
            request = job.owner
            wanted = self.came_back(job)
            over = wanted and request.rows == 0 and not own
            for outcome in own:
                if not wanted:
                    if isinstance(outcome, PartRecord):
                        core.apart.close(request.client, outcome)
                elif isinstance(request, Series):
                    self._series_rows(request, outcome)
                elif isinstance(outcome, m.ItemFailed):
                    over = request.fail_rows(
                        outcome.start, outcome.rows, outcome.kind, outcome.text
                    )
                else:
                    request.parts.append(outcome)
                    over = request.settled(outcome.rows)
            if over:
                core.answers.finish(request)

    def _series_rows(self, series: Series, outcome: PartRecord | m.ItemFailed) -> None:
        """What became of some requests of a series."""
        answers = self._core.answers
        start, rows = outcome.start, outcome.rows
        if isinstance(outcome, m.ItemFailed):
            answers.fail_rows(series, start, rows, outcome.kind, outcome.text)
        elif outcome.descriptor < 0:
            answers.done_rows(series, start, rows, outcome.layout)
        else:
            answers.done_apart(series, outcome)
        series.end_rows(rows)

    def came_back(self, job: Job) -> bool:
        """A worker has no more to do with this job; returns whether anybody waits for it."""
        request = job.owner
        request.returned()
        if request.segment.unuse():
            self._core.release(request.segment)
        if request.cancelled:
            if request.running == 0:
                self._core.answers.finish(request)
            return False
        return True

    def fail(self, job: Job, kind: Kind, text: str) -> None:
        """A job that is not queued any more ends with an error."""
        request = job.owner
        if isinstance(request, Series):
            ran = job.begun or job.suspect
            self._core.answers.fail_rows(request, job.start, job.rows, kind, text, ran)
            request.end_rows(job.rows)
        elif request.fail_rows(job.start, job.rows, kind, text) and request.running == 0:
            self._core.answers.finish(request)

    def cancel(self, request: Request) -> None:
        """The caller has lost interest; what runs is let finish, its answer dropped."""
        if request.cancelled:
            return
        request.cancelled = True
        for job in request.jobs:
            if job.queued:
                self._core.batcher.remove(job)
        if request.running == 0:
            self._core.answers.finish(request)

    def drop(self, series: Series) -> None:
        """Callers of some of its requests have lost interest: those that wait end now."""
        for job in list(series.jobs):
            if job.queued and series.dropped_of(job):
                self._core.batcher.replace(job, self.wanted_of(job))

    def wanted_of(self, job: Job) -> list[Job]:
        """A job that waits, or will again, without what was cancelled of it: that ends here."""
        series = job.owner
        if not isinstance(series, Series):
            return [job]
        dropped = series.dropped_of(job)
        if not dropped:
            return [job]
        series.jobs.remove(job)
        parts: list[Job] = []
        start = job.start
        for row in (*dropped, job.start + job.rows):
            if start < row:
                parts.append(job.part(start, row - start))
            start = row + 1
        self._core.answers.cancel_rows(series, [series.number + row for row in dropped])
        series.end_rows(len(dropped))
        return parts
