"""How long a batch takes, as it was measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling.estimates import Estimates


def test_nothing_seen_is_no_time() -> None:
    assert Estimates().predict(8) == 0


def test_the_first_measurement_is_believed() -> None:
    estimates = Estimates()
    estimates.observe(8, 1_000)
    assert estimates.predict(8) == 1_000
    assert estimates.predict(15) == 1_000
    assert estimates.predict(16) == 0


def test_a_spike_fades() -> None:
    estimates = Estimates()
    estimates.observe(1, 1_000_000_000)
    for _ in range(40):
        estimates.observe(1, 1_000)
    assert estimates.predict(1) < 20_000


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 10**12)), min_size=1))
def test_estimates_stay_within_what_was_seen(measured: list[tuple[int, int]]) -> None:
    estimates = Estimates()
    for rows, took in measured:
        estimates.observe(rows, took)
    for rows, _ in measured:
        alike = [took for other, took in measured if other.bit_length() == rows.bit_length()]
        assert min(alike) - 1 <= estimates.predict(rows) <= max(alike) + 1
