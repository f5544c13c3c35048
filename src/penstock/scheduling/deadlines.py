"""Who is in time, by what is known of workers: alone, together with others, or elsewhere.

Old measurements (`Ability.in_time`) refuse nobody: whoever comes next makes new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.scheduling.abilities import Ability
from penstock.scheduling.queue import Job
from penstock.scheduling.runners import Runner, overdue

_NEVER = 1 << 62


def in_time(job: Job, runners: Sequence[Runner], now: int, *, begun: bool = False) -> bool:
    """Whether one of these can meet a job's deadline, as far as is known.

    `begun`: if it began at once, whatever is before it.
    """
    if not job.deadline or not runners:
        return True
    for runner in runners if job.lane.batched else runners[:1]:
        start = now if begun else max(now, runner.free_at)
        if job.lane.on(runner.index).in_time(job.rows, start, job.deadline):
            return True
    return False


def late_together(ability: Ability, jobs: list[Job], start: int, now: int) -> list[Job]:
    """Those that would not be in time in one batch that begins then, as far as is known."""
    rows = rows_of(jobs)
    end = start + ability.cost(rows)
    late = [job for job in jobs if 0 < job.deadline < end]
    return late if late and ability.fresh(rows, now) else []


def in_time_elsewhere(job: Job, runner: Runner, runners: Sequence[Runner], now: int) -> bool:
    """Whether another worker will probably do it in time."""
    return job.lane.batched and any(
        max(now, other.free_at) + job.lane.on(other.index).cost(job.rows) <= job.deadline
        for other in runners
        if other is not runner and not other.alone and not overdue(other, now)
    )


def in_time_together(ability: Ability, jobs: Sequence[Job], start: int) -> Iterator[Job]:
    rows, until = 0, _NEVER
    for job in jobs:
        rows += job.rows
        until = min(until, job.deadline or _NEVER)
        if start + ability.cost(rows) > until:
            return
        yield job


def rows_of(jobs: Sequence[Job]) -> int:
    """The rows of these jobs together."""
    return sum(job.rows for job in jobs)
