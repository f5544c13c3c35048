"""A worker that gathers and scatters beside its device: rows go round in groups that hide that."""

from __future__ import annotations

import pytest

from penstock.scheduling import groups
from penstock.scheduling.decisions import Closed
from tests.scheduling.bench import CPU, GPU, MS, US, Bench, lane_of

GROWS = {1: 1_300 * US, 16: 1_300 * US, 64: 2_800 * US, 256: 8_000 * US}
LADDER = (1, 16, 64, 128, 256)


def sizes(bench: Bench) -> list[tuple[int, Closed]]:
    return [(len(decision.jobs), decision.closed) for decision in bench.step()]


def test_what_waits_for_an_idle_device_leaves_in_the_groups_with_the_shortest_round() -> None:
    """192 rows: 8.4 ms in three groups of 64; together 8 ms, and what is outside of the device."""
    bench, lane = Bench(hands=3), lane_of(GROWS, 256, ladder=LADDER)
    lane.on(0).gather = 10.0 * US
    for _ in range(192):
        bench.add(lane)
    assert sizes(bench) == [(64, Closed.PART)] * 3


def test_the_longer_the_way_of_clients_the_smaller_the_groups() -> None:
    """All rows are on their way or waiting; a group must be back before the others are done."""
    found = {}
    for way in (100 * US, 4 * MS, 10 * MS):
        bench, lane = Bench(hands=3), lane_of(GROWS, 256, ladder=LADDER)
        bench.teach(lane, way)
        for caller in range(256):
            bench.add(lane, fairness=caller)
        found[way] = len(bench.step()[0].jobs)
    assert found == {100 * US: 256, 4 * MS: 128, 10 * MS: 64}


def test_many_more_than_a_batch_leave_at_the_size_with_the_most_rows_a_second() -> None:
    bench, lane = Bench(hands=3), lane_of(GROWS, 256, ladder=LADDER)
    bench.teach(lane, 2 * MS)
    for _ in range(2_000):
        bench.add(lane)
    assert sizes(bench) == [(256, Closed.FULL)] * 3


def test_of_rounds_that_are_as_long_the_one_with_the_fewest_batches() -> None:
    """36 rows go round no sooner in groups of 8 than of 16: the way is what takes long."""
    times = dict.fromkeys((1, 2, 4, 8, 16), 1900 * US) | {32: 2_300 * US, 64: 3_200 * US}
    bench, lane = Bench(hands=4), lane_of(times, 64, ladder=tuple(times))
    bench.teach(lane, 12 * MS)
    for caller in range(36):
        bench.add(lane, fairness=caller)
    assert len(bench.step()[0].jobs) == 16


def test_the_last_of_many_groups_is_not_reckoned_as_a_whole_one() -> None:
    """546 rows are not three groups of 256: with what comes back the third one is filled."""
    bench, lane = Bench(hands=4), lane_of(GROWS, 256, ladder=LADDER)
    bench.teach(lane, 3 * MS)
    for caller in range(546):
        bench.add(lane, fairness=caller)
    assert len(bench.step()[0].jobs) == 256


@pytest.mark.parametrize(("milliseconds", "size"), [(1, 256), (10, 512)])
def test_smaller_groups_only_where_the_way_may_matter(milliseconds: int, size: int) -> None:
    """1,024 rows: 256 take 7 % longer than 512. A way of 2 ms is little where they take 157 ms."""
    takes = {1: 1.3, 16: 1.3, 64: 2.8, 128: 4.6, 256: 8.4, 512: 15.7}
    times = {rows: int(each * milliseconds * MS) for rows, each in takes.items()}
    bench, lane = Bench(hands=4), lane_of(times, 512, ladder=tuple(times))
    bench.teach(lane, 2 * MS)
    for caller in range(1_024):
        bench.add(lane, fairness=caller)
    assert len(bench.step()[0].jobs) == size


def test_the_size_of_groups_does_not_change_with_every_measurement() -> None:
    """Two hands tell of their batches together, and then none for a while. 1,024 rows, an H200."""
    takes = {1: 0.86, 16: 1.08, 64: 2.84, 128: 4.7, 256: 8.2, 512: 15.62, 1_024: 30.06}
    times = {rows: int(each * MS) for rows, each in takes.items()}
    bench, lane = Bench(hands=4), lane_of(times, 1_024, ladder=tuple(times))
    bench.teach(lane, 2 * MS)
    for caller in range(1_024):
        bench.add(lane, fairness=caller)
    lane.on(0).estimates.overlap = True
    lane.on(0).gather = 10.0 * US
    sizes = []
    size = 512  # as it may be when clients begin
    for number in range(300):
        interval = int(takes[size] * (0.15, 1.95)[number % 2] * MS)
        bench.now += interval
        lane.observe(0, size, interval, bench.now)
        size = groups.most(lane, lane.on(0), bench.workers[0], bench.workers, bench.now)
        sizes.append(size)
    assert set(sizes[50:]) == {256}


def test_groups_that_have_become_too_small_are_given_up_after_a_while() -> None:
    """Taken while few rows were about, of groups of 128 each row costs an H200 13 % more than of
    256: too much to choose them, too little to give them up at once."""
    takes = {1: 0.88, 16: 1.1, 32: 1.75, 64: 2.64, 128: 4.53, 256: 8.03, 512: 15.94, 1_024: 30.24}
    times = {rows: int(each * MS) for rows, each in takes.items()}
    bench, lane = Bench(hands=4), lane_of(times, 1_024, ladder=tuple(times))
    bench.teach(lane, 2 * MS)
    lane.on(0).estimates.overlap = True
    lane.on(0).gather = 10.0 * US

    def most() -> int:
        return groups.most(lane, lane.on(0), bench.workers[0], bench.workers, bench.now)

    for caller in range(256):
        bench.add(lane, fairness=caller)
    sizes = [most()]
    assert sizes == [128]
    for caller in range(256, 1_024):
        bench.add(lane, fairness=caller)
    for _ in range(300):
        interval = times[sizes[-1]]
        bench.now += interval
        lane.observe(0, sizes[-1], interval, bench.now)
        sizes.append(most())
    assert sizes[1:20] == [128] * 19
    assert set(sizes[100:]) == {256}


def test_groups_are_reckoned_anew_when_something_else_is_known() -> None:
    bench, lane = Bench(hands=4), lane_of(GROWS, 256, ladder=LADDER)
    bench.teach(lane, 3 * MS)
    for caller in range(546):
        bench.add(lane, fairness=caller)

    def most() -> int:
        return groups.most(lane, lane.on(0), bench.workers[0], bench.workers, bench.now)

    assert most() == 256
    for _ in range(200):
        lane.observe(0, 64, 100 * US, bench.now)
    assert most() == 64
    lane.tell(0, 16, LADDER[:2], ())
    assert most() == 16


def test_workers_share_what_is_about() -> None:
    """256 rows for two devices are 128 for each, and go in the groups that suit 128."""
    bench, lane = Bench(2, hands=3), lane_of(GROWS, 256, ladder=LADDER)
    bench.teach(lane, 2 * MS)
    for _ in range(256):
        bench.add(lane)
    assert [len(decision.jobs) for decision in bench.step()] == [64] * 4


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_together_where_more_rows_take_no_longer(rows: int) -> None:
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
        decision = bench.step()[0]
        assert (decision.closed is Closed.PART) is parts, outside


def test_a_device_about_to_be_free_waits_for_those_whom_it_answers() -> None:
    """Eight run and eight wait: sixteen together take hardly longer, however long the way back."""
    times = {1: 2 * MS, 8: 2 * MS, 16: 2_100 * US}
    bench, lane = Bench(hands=3), lane_of(times, 32)
    bench.teach(lane, 1_500 * US)
    bench.crowd(lane, range(8))
    assert len(bench.one().jobs) == 8
    bench.crowd(lane, range(8, 16))
    bench.now = bench.workers[0].free_at
    assert bench.step() == []
    bench.finish()
    assert bench.step() == []
    assert bench.step(passes=1_400 * US) == []
    bench.crowd(lane, range(8))
    decision = bench.one()
    assert (len(decision.jobs), decision.closed) == (16, Closed.COMPLETE)
