"""The supervisors of several machines: they start together, stop together and agree how it went.

The first machine's listens; the others connect to it. Messages are lines of JSON::

    member ─▶ head    hello (who am I, what do I run), result
    head ─▶ member    go, stop, verdict

Whoever's connection breaks has failed. Machines that vanish without a word are noticed within half
a minute (TCP keep-alive). A job on one machine has no peers: `Alone`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.train.launcher.head import Head
from penstock.train.launcher.job import Job
from penstock.train.launcher.member import Member
from penstock.train.launcher.result import Result
from penstock.train.launcher.watch import Watch


class Peers(Protocol):
    """The other machines, as one of them sees them."""

    stopped: bool  # this attempt is over, another machine says

    def begin(self, attempt: int) -> int | None:
        """Wait until all are ready; returns the attempt's number, `None` if told to end before."""

    def tell(self, result: Result) -> None:
        """It is over here, before all tasks have ended: the others shall stop, too."""

    def agree(self, result: Result, left: int) -> tuple[Result, bool]:
        """How it went on all machines together, and whether all begin again, if so many restarts
        are left."""

    def close(self) -> None:
        """Leave."""


class Alone:
    """No other machine."""

    stopped = False

    def begin(self, attempt: int) -> int | None:
        """At once."""
        return attempt

    def tell(self, result: Result) -> None:
        """Nobody."""

    def agree(self, result: Result, left: int) -> tuple[Result, bool]:
        """As it went here."""
        return result, result.may_pass and left > 0

    def close(self) -> None:
        """Nothing to leave."""


def peers_of(job: Job, watch: Watch, say: Callable[[str], None]) -> Peers:
    """Those of this job."""
    if job.machines == 1:
        return Alone()
    address = job.nodes[0]
    return Head(job, address, watch, say) if job.rank == 0 else Member(job, address, watch, say)
