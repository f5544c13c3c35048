"""The simulation's goals, in small. No time of the machine is in it: it tells the same anywhere."""

from __future__ import annotations

import pytest

from benchmarks.scheduling.campaign import OTHERS, OURS, Plan, campaign, cells
from benchmarks.scheduling.verdicts import WITHIN, against_best

_PLAN = Plan(2, 1_500, (0.1, 0.5, 0.9))
_TELLING = ("poisson-0.1", "poisson-0.9", "bursty-0.1", "closed-16x1", "closed-16x16")


@pytest.mark.parametrize("device", ["resnet50-h200", "mobilenetv2-cpu"])
def test_nobody_waits_longer_than_with_the_best_of_other_policies(device: str) -> None:
    chosen = [cell for cell in cells(_PLAN, [device]) if cell.name in _TELLING]
    assert len(chosen) == len(_TELLING)
    for found in campaign(_PLAN, chosen, [OURS, *OTHERS], lambda: None):
        for figure in ("p99", "rate"):
            assert against_best(found, figure, OTHERS).mean <= WITHIN, (found.cell, figure)
