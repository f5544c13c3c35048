"""How long a batch takes, as it was measured: medians, lines between them, and how old they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling.estimates import Estimates

MS = 1_000_000
SECOND = 1_000 * MS


def _measured(*pairs: tuple[int, int]) -> Estimates:
    estimates = Estimates()
    for rows, took in pairs:
        estimates.observe(rows, took, SECOND)
    return estimates


# ── one size ───────────────────────────────────────────────────────────────────────────────────


def test_nothing_seen_is_no_time() -> None:
    assert Estimates().predict(8) == 0


def test_the_first_measurement_is_believed() -> None:
    assert _measured((8, 1_000)).predict(8) == 1_000


def test_a_batch_takes_some_time_however_short_it_was() -> None:
    """0 stands for: not known."""
    estimates = _measured((1, 0))
    assert estimates.predict(1) == 1
    estimates.seed(8, 0)
    assert estimates.predict(8) == 1


def test_an_estimate_is_the_median_of_the_last_five() -> None:
    estimates = _measured(*((4, took) for took in (900, 100, 500, 300, 700)))
    assert estimates.predict(4) == 500
    for took in (10, 10):  # the 900 and the 100 are forgotten: 500, 300, 700, 10, 10
        estimates.observe(4, took, SECOND)
    assert estimates.predict(4) == 300


@pytest.mark.parametrize("slow", [1, 2])
def test_a_slow_batch_or_two_change_nothing(slow: int) -> None:
    estimates = _measured(*[(4, 1_000)] * 5, *[(4, SECOND)] * slow)
    assert estimates.predict(4) == 1_000


def test_a_lasting_change_is_seen_after_three() -> None:
    assert _measured(*[(4, 1_000)] * 5, *[(4, 7_000)] * 3).predict(4) == 7_000
    assert _measured(*[(4, 7_000)] * 5, *[(4, 1_000)] * 3).predict(4) == 1_000


# ── between and beyond sizes ───────────────────────────────────────────────────────────────────


def test_sizes_in_between_lie_on_a_line() -> None:
    estimates = _measured((2, 1_000), (8, 7_000))
    assert [estimates.predict(rows) for rows in (2, 4, 5, 7, 8)] == [
        1_000,
        3_000,
        4_000,
        6_000,
        7_000,
    ]


def test_fewer_rows_than_were_seen_take_as_long_as_the_fewest() -> None:
    """A batch's time does not go to nothing with its rows: there is a part that all have."""
    estimates = _measured((16, 5_000), (32, 9_000))
    assert estimates.predict(1) == estimates.predict(0) == 5_000


def test_more_rows_than_were_seen_take_longer_in_proportion() -> None:
    estimates = _measured((4, 1_000), (8, 2_000))
    assert estimates.predict(16) == 4_000
    assert estimates.predict(80) == 20_000


def test_sizes_that_are_alike_are_measured_together() -> None:
    """Up to the next power of two, so that a model without a ladder has few sizes to learn."""
    estimates = _measured((5, 1_000), (8, 3_000), (7, 2_000))
    assert estimates.predict(8) == 2_000
    assert len(estimates._sizes) == 1


def test_a_time_belongs_to_the_rows_that_were_seen_lately() -> None:
    estimates = _measured((4, 1_000), (5, 9_000), *[(8, 9_000)] * 40)
    assert estimates.predict(6) == pytest.approx(5_000, abs=10)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 10**12)), min_size=1))
def test_estimates_stay_within_what_was_seen(measured: list[tuple[int, int]]) -> None:
    estimates = _measured(*measured)
    times = [took for _, took in measured]
    most = max(rows for rows, _ in measured)
    for rows in range(0, most + 1, max(most // 50, 1)):
        assert min(times) - 1 <= estimates.predict(rows) <= max(times) + 1


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(1, 10**9)), min_size=1, max_size=40),
    st.booleans(),
)
def test_more_rows_never_take_less_where_measurements_say_so(
    measured: list[tuple[int, int]], by_warm_up: bool
) -> None:
    sizes = sorted(rows for rows, _ in measured)
    times = sorted(took for _, took in measured)
    estimates = Estimates()
    for rows, took in zip(sizes, times, strict=True):
        if by_warm_up:
            estimates.seed(rows, took)
        estimates.observe(rows, took, SECOND)
    predicted = [estimates.predict(rows) for rows in range(1_500)]
    assert predicted == sorted(predicted)


# ── what warm-up measured ──────────────────────────────────────────────────────────────────────


def test_warm_up_is_believed_until_the_first_measurement() -> None:
    estimates = Estimates()
    estimates.seed(8, 5_000)
    assert estimates.predict(8) == 5_000
    estimates.seed(8, 6_000)
    assert estimates.predict(8) == 6_000
    estimates.observe(8, 1_000, SECOND)
    assert estimates.predict(8) == 1_000


def test_warm_up_does_not_undo_a_measurement() -> None:
    estimates = _measured((8, 1_000))
    estimates.seed(8, 9_000)
    assert estimates.predict(8) == 1_000


def test_sizes_of_warm_up_and_of_work_make_one_line() -> None:
    estimates = Estimates()
    estimates.seed(1, 1_000)
    estimates.seed(16, 16_000)
    estimates.observe(4, 1_000, SECOND)
    assert estimates.predict(1) == estimates.predict(2) == 1_000
    assert estimates.predict(10) == 8_500


def test_warm_up_alone_refuses_nobody() -> None:
    estimates = Estimates()
    estimates.seed(8, SECOND)
    assert not estimates.fresh(8, 0)
    assert not estimates.fresh(8, SECOND)


# ── how old a measurement is ───────────────────────────────────────────────────────────────────


def test_measurements_are_fresh_for_a_second() -> None:
    estimates = _measured((8, 1_000))
    assert estimates.fresh(8, SECOND)
    assert estimates.fresh(8, 2 * SECOND)
    assert not estimates.fresh(8, 2 * SECOND + 1)


def test_nothing_is_fresh_before_the_first_measurement() -> None:
    assert not Estimates().fresh(1, 5)


def test_each_size_has_its_own_age() -> None:
    """Small batches that keep coming must not make an old time of a large one look new."""
    estimates = Estimates()
    estimates.observe(16, 9 * SECOND, SECOND)
    estimates.observe(1, 1_000, 3 * SECOND)
    assert estimates.fresh(1, 3 * SECOND)
    assert not estimates.fresh(16, 3 * SECOND)
    assert not estimates.fresh(8, 3 * SECOND)  # on the line between the two
    assert not estimates.fresh(64, 3 * SECOND)
    estimates.observe(16, 2_000, 3 * SECOND)
    assert all(estimates.fresh(rows, 3 * SECOND) for rows in (1, 8, 16, 64))


def test_a_line_is_as_old_as_its_older_end() -> None:
    estimates = Estimates()
    estimates.observe(1, 1_000, SECOND)
    estimates.observe(16, 16_000, 3 * SECOND)
    assert not estimates.fresh(8, 3 * SECOND)
    assert estimates.fresh(16, 3 * SECOND)


def test_one_measurement_is_enough_after_a_pause() -> None:
    """The probe that an old estimate lets through decides alone, whatever was measured before."""
    estimates = _measured(*[(4, SECOND)] * 5)
    estimates.observe(4, 1_000, 2 * SECOND)
    assert estimates.predict(4) == SECOND  # a second ago: they still count
    estimates.observe(4, 1_000, 3 * SECOND + 1)
    assert estimates.predict(4) == 1_000


def test_a_pause_of_one_size_is_a_pause() -> None:
    estimates = _measured(*[(4, SECOND)] * 5)
    for tenth in range(30):
        estimates.observe(1, 1_000, SECOND + tenth * SECOND // 10)
    estimates.observe(4, 5_000, 4 * SECOND)
    assert estimates.predict(4) == 5_000


# ── batches that overlap, and sizes that are not used ──────────────────────────────────────────


def test_where_batches_overlap_what_is_told_in_pairs_counts_by_its_mean() -> None:
    estimates = Estimates()
    estimates.overlap = True
    for at in range(50):
        estimates.observe(256, (2 if at % 2 else 14) * MS, SECOND)
        if at > 5:
            assert 5 * MS < estimates.predict(256) < 11 * MS
    for took in (8, 8, 8, 8, 500):
        estimates.observe(256, took * MS, SECOND)
    assert estimates.predict(256) == 8 * MS


def test_a_size_that_is_not_used_takes_as_many_times_longer_as_those_in_use() -> None:
    estimates = Estimates()
    for size, takes in ((128, 4), (256, 8)):
        estimates.seed(size, takes * MS)
    estimates.observe(256, 40 * MS, SECOND)  # a bad moment, long ago
    now = 10 * SECOND
    for _ in range(200):
        estimates.observe(128, 5 * MS, now)
    assert estimates.predict(256) == 40 * MS
    assert estimates.likely(256, now) == pytest.approx(10 * MS, rel=0.001)
    assert estimates.likely(128, now) == pytest.approx(5 * MS, rel=0.001)
    for _ in range(200):
        estimates.observe(256, 9 * MS, now)
    assert estimates.likely(256, now) == pytest.approx(9 * MS, rel=0.001)


def test_on_the_whole_every_measurement_counts_a_little() -> None:
    """What two hands tell of comes in bunches: the mean of a few is far off."""
    estimates = Estimates()
    estimates.overlap = True
    estimates.seed(256, 8 * MS)
    predicted = set()
    for at in range(300):
        estimates.observe(256, (3, 4, 19, 8, 8)[at % 5] * MS, SECOND)
        predicted.add(estimates.predict(256))
        assert estimates.likely(256, SECOND) == pytest.approx(8.4 * MS, rel=0.15)
    assert max(predicted) > 1.5 * min(predicted)
    estimates.observe(256, 5 * SECOND, SECOND)  # a stop is a stop
    assert estimates.likely(256, SECOND) < 11 * MS
    unseen = Estimates()
    unseen.observe(4, 6 * MS, SECOND)  # no warm-up: the first one is all that is known
    assert unseen.likely(4, SECOND) == 6 * MS
