"""Who is to blame, of several tasks that failed."""

from __future__ import annotations

import time

import pytest

from penstock.train.launcher.blame import Ending, first_real
from penstock.train.launcher.head import Head
from penstock.train.launcher.result import How, Result, joined

CAUSE = Ending(
    "ps 0", 1, 2.0, ("Traceback (most recent call last):", '  File "job.py"', "KeyError: 'label'")
)


@pytest.mark.parametrize(
    "told",
    [
        "penstock.errors.WorkerLost: worker 1 of 2 has lost another one: Socket is gone",
        "penstock.errors.WorkerLost: parameter servers lost: a:1; with them the weights",
        "RuntimeError: parameter servers lost: a:1",
    ],
)
def test_whoever_lost_another_one_is_not_to_blame_though_it_ended_first(told: str) -> None:
    tail = ("Traceback (most recent call last):", '  File "job.py"', told)
    loser = Ending("worker 1", 1, 1.0, tail)
    assert first_real([loser, CAUSE]) is CAUSE
    assert first_real([loser]) is loser  # nobody else has failed


def test_machines_are_compared_by_one_clock() -> None:
    """The member's clock began long before the head's."""
    head = object.__new__(Head)
    head._results, head._members = {}, {}
    own = Result(How.FAILED, Ending("worker 0", 1, time.monotonic(), ("ValueError: first",)))
    later = Result(How.FAILED, Ending("worker 1", 1, -1e6, ("ValueError: second",)))
    head._record(1, later)
    assert joined([own, head._results[1]]).blame == own.blame
