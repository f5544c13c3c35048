"""What becomes of the rows of a batch that came back: each job's request is settled, or ended.

The usual batch is answered as a whole, and so is each of its requests. The others are told row by
row, by what the worker has said of its items before (`Batch.outcomes`). Rows of a series end at
once, each with its own message; those of other requests when all are settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.engine.requests import PartRecord, Series
from penstock.engine.workers import Batch, Worker
from penstock.scheduling.queue import Job
from penstock.spec import Signature
from penstock.transport import messages as m

if TYPE_CHECKING:
    from penstock.engine.core import Core


class Settling:
    """Settles the rows of a core's batches."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def batch_ran(self, worker: Worker, batch: Batch, layout: int) -> None:
        """A batch came back: with answers of this layout, or (0) with what its items say."""
        if not layout:
            self._in_parts(worker, batch)
            return
        core = self._core
        signature = worker.output_layouts[layout]
        for job in batch.jobs:
            request = job.owner
            if request.answered(job.rows):
                if request.segment.unuse():
                    core.release(request.segment)
                core.answers.done(request, signature)
            elif core.came_back(job):
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

    def _in_parts(self, worker: Worker, batch: Batch) -> None:
        core = self._core
        outcomes: list[list[tuple[Any, int]]] = [[] for _ in batch.jobs]
        for outcome, descriptor in batch.outcomes:
            outcomes[outcome.item].append((outcome, descriptor))
        for job, own in zip(batch.jobs, outcomes, strict=True):
            request = job.owner
            wanted = core.came_back(job)
            over = wanted and request.rows == 0 and not own
            for outcome, descriptor in own:
                if not wanted:
                    if descriptor >= 0:
                        core.effects.close(descriptor)
                elif isinstance(request, Series):
                    self._series_rows(worker, request, outcome, descriptor)
                elif isinstance(outcome, m.ItemFailed):
                    over = request.fail_rows(
                        outcome.start, outcome.rows, outcome.kind, outcome.text
                    )
                else:
                    request.parts.append(_part(worker, outcome, descriptor))
                    over = request.settled(outcome.rows)
            if over:
                core.answers.finish(request)

    def _series_rows(self, worker: Worker, series: Series, outcome: Any, descriptor: int) -> None:
        """What became of some requests of a series."""
        answers = self._core.answers
        start, rows = outcome.start, outcome.rows
        if isinstance(outcome, m.ItemFailed):
            answers.fail_rows(series, start, rows, outcome.kind, outcome.text)
        elif descriptor < 0:
            answers.done_rows(series, start, rows, worker.output_layouts[outcome.layout])
        else:
            answers.done_apart(series, _part(worker, outcome, descriptor))
        series.end_rows(rows)


def _part(worker: Worker, outcome: m.ItemPart, descriptor: int) -> PartRecord:
    signature = worker.output_layouts[outcome.layout]
    return PartRecord(outcome.start, outcome.rows, signature, outcome.size, descriptor)
