"""Time limits of benchmarks: what takes too long is broken off, in the middle of a wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from benchmarks.core.budget import Budget, OutOfTime

pytestmark = pytest.mark.timeout(60, method="thread")  # the other method has the same alarm


def test_a_part_that_waits_is_broken_off_and_the_next_has_its_turn() -> None:
    budget = Budget(part=0.2)
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        with pytest.raises(OutOfTime, match="cut off after 0 s"), budget.part():
            process.wait(60)
        process.kill()
    assert time.monotonic() - began < 30
    assert not budget.is_over
    with budget.part():
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_whole_run_has_an_end() -> None:
    budget = Budget(whole=1.2)
    assert not budget.is_over
    with pytest.raises(OutOfTime), budget.part():
        time.sleep(30)
    assert budget.is_over


def test_without_limits_nothing_ends() -> None:
    with Budget().part():
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
