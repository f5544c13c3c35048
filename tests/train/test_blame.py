"""Who is to blame, of several tasks that failed."""

from __future__ import annotations

import pytest

from penstock.train.launcher.blame import Ending, first_real

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
