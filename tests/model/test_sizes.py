"""The search for the best batch against measuring every size, on curves that are made up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.sizes import PROBES, Curve, DoesNotFit, Search, ladder_of, search

Time = Callable[[int], float]
starts = st.floats(0.0, 1e-2)
slopes = st.floats(1e-7, 1e-3)
tops = st.integers(16, 2048)


class Probed:
    """A curve that counts how often it is measured."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.sizes: list[int] = []

    def __call__(self, size: int) -> float:
        self.sizes.append(size)
        return self.time(size)


def share_of_the_best(time: Time, most: int) -> float:
    """What share of the best throughput of all sizes the search ends at; few are measured.

    The worse of two: knowing what a call of one row takes, and one of 256 as well.
    """
    best = max(size / time(size) for size in range(1, most + 1))
    shares = []
    for known in ({1}, {1, min(256, most)}):
        probed = Probed(time)
        found = search(probed, most=most, known={size: time(size) for size in known})
        assert len(probed.sizes) <= PROBES
        assert not known & set(probed.sizes)
        assert len(set(probed.sizes)) == len(probed.sizes)
        assert found.best <= most
        shares.append(found.best / time(found.best) / best)
    return min(shares)


@given(start=starts, slope=slopes, most=tops)
def test_a_straight_line(start: float, slope: float, most: int) -> None:
    assert share_of_the_best(lambda n: start + slope * n, most) >= 0.98


@given(start=starts, slope=slopes, tile=st.sampled_from([2, 4, 8, 16, 32, 64, 128]))
def test_steps_of_a_power_of_two(start: float, slope: float, tile: int) -> None:
    def time(size: int) -> float:
        return start + slope * tile * math.ceil(size / tile)

    assert share_of_the_best(time, 2048) >= 0.98


@given(floor=st.floats(1e-4, 1e-2), slope=slopes, start=starts, most=tops)
def test_saturating_after_a_floor(floor: float, slope: float, start: float, most: int) -> None:
    """A host that needs so long for any call, then a device that needs so long a row."""
    assert share_of_the_best(lambda n: max(floor, start + slope * n), most) >= 0.98


@given(start=st.floats(1e-4, 1e-2), slope=st.floats(1e-5, 1e-3), peak=st.floats(20, 1500))
def test_falling_beyond_a_peak(start: float, slope: float, peak: float) -> None:
    """Rows cost more in large batches, as when they outgrow a cache."""
    bend = start / peak**2

    def time(size: int) -> float:
        return start + slope * size + bend * size * size

    assert share_of_the_best(time, 2048) >= 0.98


def test_a_small_model_goes_on_and_a_large_one_stops_early() -> None:
    small = search(lambda n: 1e-3 + 1e-7 * n, known={1: 1e-3})
    assert small.best == 2048
    assert "the most that is allowed" in small.why
    large = search(lambda n: 1e-5 + 1e-2 * n, known={1: 1.001e-2})
    assert large.best == 1
    assert large.probes == (16,)
    assert "less than 1 %" in large.why


def test_a_curve_that_bends_like_a_large_networks_ends_at_its_bend() -> None:
    known = {1: 1.6e-3, 16: 1.72e-3, 64: 2.66e-3, 256: 7.84e-3, 1024: 31.2e-3}
    found = search(lambda n: Curve(known).at(n), most=1024, known={1: known[1]})
    assert found.best in (192, 256)
    assert found.why == "larger batches bring less than 1 % more, of 1024 rows for one"
    assert ladder_of(found.curve, 256) == (1, 16, 32, 64, 128, 256)


def test_one_disturbed_measurement_does_not_end_the_search() -> None:
    times = {16: 8e-3}
    found = search(lambda n: times.get(n, 1e-3 + 5e-5 * n), known={1: 1e-3, 32: 2.6e-3})
    assert found.best >= 512


@given(start=starts, slope=slopes, room=st.integers(2, 2000))
def test_what_does_not_fit_is_not_measured(start: float, slope: float, room: int) -> None:
    def time(size: int) -> float:
        assert size <= room
        return start + slope * size

    found = search(time, fits=lambda size: size <= room, known={1: start + slope})
    assert found.best <= room
    best = max(size / time(size) for size in range(1, room + 1))
    assert found.best / time(found.best) >= 0.98 * best


def _found(time: Time, **options: object) -> Search:
    return search(time, **options)  # type: ignore[arg-type]


def test_a_size_that_fails_all_the_same_ends_the_search() -> None:
    def time(size: int) -> float:
        if size > 200:
            raise DoesNotFit
        return 1e-3 + 1e-6 * size

    found = _found(time)
    assert found.best == 64
    assert found.failed == 256
    assert found.why == "256 rows do not fit into the device's memory"
    with pytest.raises(DoesNotFit):
        _found(time, known={}, fits=lambda size: False)


def test_when_the_time_is_used_up_what_is_known_is_taken() -> None:
    found = _found(lambda n: 1e-3, known={1: 1e-3, 16: 1e-3}, done=lambda: True)
    assert found.best == 16
    assert found.why == "the time for measuring was used up"


@given(start=starts, slope=slopes, top=st.integers(1, 4096))
def test_a_ladder_is_short_and_every_rung_saves(start: float, slope: float, top: int) -> None:
    curve = Curve({1: start + slope, 4096: start + slope * 4096})
    rungs = ladder_of(curve, top)
    assert rungs[0] == 1
    assert rungs[-1] == top
    assert list(rungs) == sorted(set(rungs))
    assert len(rungs) <= 8
    for low, high in itertools.pairwise(rungs[1:]):
        assert curve.at(low) <= 0.9 * curve.at(high) * (1 + 1e-9)


def test_sizes_that_take_as_long_have_no_rung() -> None:
    assert ladder_of(Curve({1: 2e-3, 16: 2e-3, 64: 2e-3}), 64) == (1, 64)
    assert ladder_of(Curve({1: 1e-3, 16: 16e-3}), 16) == (1, 2, 4, 8, 16)
