"""Which rows of a source come in which batch, and what each worker reads for it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.train.feed import mixing
from penstock.train.feed.cut import split
from penstock.train.feed.mixing import stretches

SEEDS = st.one_of(st.none(), st.integers(0, 5))


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_BLOCK", 8)
        patch.setattr(mixing, "_WINDOW", 32)
        yield


def trained(
    rows: int, size: int, workers: int, worker: int, seed: int | None, start: int = 0
) -> list[list[int]]:
    """A worker's rows of each batch; it reads each of them once, and no others."""
    own = split((0, size), workers)[worker]
    came: list[int] = []
    for spans, order in stretches(rows, size, own, seed, 1, start):
        read = np.array([row for span in spans for row in range(*span)], int)
        taken = read if order is None else read[order]
        whole = start == 0 or bool(came)  # what is taken up in its middle is read as a whole
        assert len(taken) == len(read) or not whole
        came += taken.tolist()
    assert len(set(came)) == len(came)
    mine = own[1] - own[0]
    batches = -(-rows // size) - start
    return [came[at * mine : (at + 1) * mine] for at in range(batches)]


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 5), SEEDS)
@example(rows=64, size=32, workers=2, seed=0)
@example(rows=300, size=7, workers=5, seed=1)
def test_batches_have_the_same_rows_whatever_the_number_of_workers(
    rows: int, size: int, workers: int, seed: int | None
) -> None:
    workers = min(workers, size)
    alone = trained(rows, size, 1, 0, seed)
    every = [trained(rows, size, workers, worker, seed) for worker in range(workers)]
    assert sorted(chain(*alone)) == list(range(rows))
    for at, batch in enumerate(alone):
        assert len(batch) == min(size, rows - at * size)
        parts = [worker[at] for worker in every]
        assert sorted(chain(*parts)) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 2
    if seed is None:
        assert list(chain(*alone)) == list(range(rows))


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 3), SEEDS, st.integers(0, 40))
def test_an_epoch_is_taken_up_at_any_batch(
    rows: int, size: int, workers: int, seed: int | None, start: int
) -> None:
    workers = min(workers, size)
    start = min(start, -(-rows // size) - 1)
    for worker in range(workers):
        whole = trained(rows, size, workers, worker, seed)
        assert trained(rows, size, workers, worker, seed, start) == whole[start:]


def test_rows_are_mixed_and_in_another_order_each_epoch() -> None:
    def came(seed: int, epoch: int) -> list[int]:
        found: list[int] = []
        for spans, order in stretches(400, 8, (0, 8), seed, epoch):
            found += np.array([row for span in spans for row in range(*span)])[order].tolist()
        return found

    assert came(1, 0) == came(1, 0)
    assert len({tuple(came(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    batches = [came(1, 0)[at : at + 8] for at in range(0, 400, 8)]
    blocks = [{row // 8 for row in batch} for batch in batches]
    assert min(map(len, blocks)) >= 3  # all blocks of its window: three batches, or four
