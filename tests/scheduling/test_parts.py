"""A worker that gathers and scatters beside its device is given what waits in two parts."""

from __future__ import annotations

import pytest

from penstock.scheduling.batcher import Closed
from tests.scheduling.bench import CPU, GPU, MS, US, Bench, lane_of

GROWS = {1: 1_300 * US, 16: 1_300 * US, 64: 2_800 * US, 256: 8_000 * US}


def test_an_idle_device_gets_half_and_the_rest_when_it_is_about_to_be_done() -> None:
    bench, lane = Bench(hands=3), lane_of(GROWS, 256, ladder=(1, 16, 64, 128, 256))
    lane.gather = 5.0 * US
    for _ in range(192):
        bench.add(lane)
    first = bench.one()
    assert (len(first.jobs), first.closed) == (128, Closed.PART)
    wakeup = bench.wakeup()
    assert wakeup == bench.workers[0].free_at - lane.lead()
    rest = bench.one(wakeup - bench.now)
    assert (len(rest.jobs), rest.closed) == (64, Closed.AHEAD)


def test_a_full_batch_is_halved_too_if_the_device_is_idle() -> None:
    bench, lane = Bench(hands=3), lane_of(GROWS, 256)
    for _ in range(600):
        bench.add(lane)
    sizes = [(len(decision.jobs), decision.closed) for decision in bench.step()]
    assert sizes == [(128, Closed.PART), (256, Closed.FULL)]


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_not_where_more_rows_take_no_longer(rows: int) -> None:
    bench, lane = Bench(hands=3), lane_of(GPU)
    for _ in range(rows):
        bench.add(lane)
    decision = bench.one()
    assert len(decision.jobs) == rows
    assert decision.closed is not Closed.PART


def test_not_for_a_worker_that_does_one_thing_at_a_time() -> None:
    bench, lane = Bench(), lane_of(CPU)
    for _ in range(12):
        bench.add(lane)
    assert len(bench.one().jobs) == 12


def test_clients_in_a_loop_stay_together_if_a_round_is_shorter_then() -> None:
    """Half of a round is what happens outside of the device, or next to nothing of it."""
    times = {1: 1 * MS, 8: 2 * MS, 16: 3_500 * US}
    for outside, parts in ((10 * US, False), (2 * MS, True)):
        bench, lane = Bench(hands=3), lane_of(times)
        bench.teach(lane, outside)
        bench.answered(lane, range(16))
        bench.now += outside
        bench.crowd(lane, range(16))
        decision = bench.one()
        assert (decision.closed is Closed.PART) is parts, outside
