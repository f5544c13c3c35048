"""Who gets which rows of a global batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.train.feed.cut import cut, split


@given(st.integers(0, 500), st.integers(1, 7), st.integers(1, 6), st.integers(1, 5))
def test_each_row_once_in_order_and_evenly(
    rows: int, workers: int, micros: int, replicas: int
) -> None:
    parts = cut(rows, workers, micros, replicas)
    assert [len(worker) for worker in parts] == [micros * replicas] * workers
    taken = [row for worker in parts for start, stop in worker for row in range(start, stop)]
    assert taken == list(range(rows))
    of_workers = [sum(stop - start for start, stop in worker) for worker in parts]
    assert max(of_workers) - min(of_workers) <= 1
    for worker in parts:
        micro = [
            sum(stop - start for start, stop in worker[at : at + replicas])
            for at in range(0, len(worker), replicas)
        ]
        assert max(micro) - min(micro) <= 1


def test_longer_parts_come_first() -> None:
    assert split((0, 10), 3) == [(0, 4), (4, 7), (7, 10)]
    assert cut(10, 2, 1, 2) == [[(0, 3), (3, 5)], [(5, 8), (8, 10)]]
    assert split((4, 5), 3) == [(4, 5), (5, 5), (5, 5)]
