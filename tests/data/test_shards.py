from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import open_source
from penstock.data.shards import WAYS, parse_shard, shards
from penstock.errors import ConfigError, InputError

ROWS = st.integers(0, 300)
COUNT = st.integers(1, 12)
SEED = st.integers(0, 2**64)


@given(ROWS, COUNT, st.sampled_from(WAYS), SEED, st.integers(1, 50))
def test_every_row_is_in_exactly_one_shard(
    rows: int, count: int, how: str, seed: int, chunk: int
) -> None:
    values = [(row * 7919 + seed) % 13 for row in range(rows)]
    cut = shards(rows, count, how, cost=values, label=values, seed=seed, chunk=chunk)
    assert sorted(row for shard in cut for row in shard.rows) == list(range(rows))
    assert [shard.index for shard in cut] == list(range(cut[0].count))
    if how != "dynamic":
        assert len(cut) == count
    for shard in cut:
        runs = list(shard.runs(limit=chunk))
        assert [row for start, stop in runs for row in range(start, stop)] == list(shard.rows)
        assert all(0 < stop - start <= chunk for start, stop in runs)
    again = shards(rows, count, how, cost=values, label=values, seed=seed, chunk=chunk)
    assert [list(shard.rows) for shard in again] == [list(shard.rows) for shard in cut]


@given(st.integers(0, 2**32), st.integers(2, 16), st.floats(0.2, 1.5))
def test_costs_are_balanced(seed: int, count: int, spread: float) -> None:
    costs = np.random.default_rng(seed).lognormal(11, spread, 100 * count)
    totals = [
        costs[shard.rows].sum() for shard in shards(len(costs), count, "balanced", cost=costs)
    ]
    if costs.max() < costs.sum() / count:  # otherwise no way of cutting is even
        assert max(totals) <= 1.05 * min(totals)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=80), COUNT)
def test_no_shard_costs_more_than_the_cheapest_and_one_row(costs: list[float], count: int) -> None:
    cut = shards(len(costs), count, "balanced", cost=costs)
    totals = [sum(costs[row] for row in shard.rows) for shard in cut]
    assert max(totals) <= (min(totals) + max(costs)) * (1 + 1e-9)


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=300), COUNT, SEED)
def test_classes_are_shared_out_to_a_row(labels: list[str], count: int, seed: int) -> None:
    cut = shards(len(labels), count, "stratified", label=labels, seed=seed)
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    for name, total in Counter(labels).items():
        for shard in cut:
            assert abs(sum(labels[row] == name for row in shard.rows) - total / count) < 1


def test_seeds_deal_differently_and_alike_in_every_process() -> None:
    labels = [row % 3 for row in range(100)]
    one, other = (shards(100, 4, "stratified", label=labels, seed=seed)[0].rows for seed in (1, 2))
    assert list(one) != list(other)
    code = (
        "from penstock.data.shards import shards;"
        "print(list(map(int, shards(100, 4, 'stratified', "
        "label=[r % 3 for r in range(100)], seed=1)[0].rows)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([int(row) for row in one])


def test_columns_of_a_source() -> None:
    source = open_source(
        {"x": np.zeros(90), "kind": np.repeat(["a", "b", "c"], 30), "n": np.arange(90)}
    )
    for shard in shards(source, 3, "stratified", label="kind"):
        assert Counter(source.column("kind")[shard.rows].tolist()) == {"a": 10, "b": 10, "c": 10}
    sums = [int(shard.rows.sum()) for shard in shards(source, 3, "balanced", cost="n")]
    assert max(sums) <= 1.05 * min(sums)
    with pytest.raises(InputError, match="there is no column 'size'; there are"):
        shards(source, 3, "balanced", cost="size")


def test_parsing() -> None:
    assert parse_shard("3/8") == (2, 8)
    assert parse_shard("1 / 1") == (0, 1)
    for text in ("0/8", "9/8", "3", "3/0", "a/b", "-1/8", ""):
        with pytest.raises(ConfigError, match="1/8 to 8/8"):
            parse_shard(text)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shards(10, 2, "fair"), "expected one of contiguous"),
        (lambda: shards(10, 0), "count: expected a whole number from 1 on, got 0"),
        (lambda: shards(-1, 2), "got -1"),
        (lambda: shards(10, 2, "balanced"), "expected cost="),
        (lambda: shards(10, 2, "balanced", cost=[1.0] * 9), r"each of 10 rows, got \(9,\)"),
        (lambda: shards(10, 2, "balanced", cost=[-1.0] * 10), "not negative"),
        (lambda: shards(10, 2, "stratified"), "expected label="),
        (lambda: shards(10, 2, "stratified", label="kind"), "there is no source"),
        (lambda: shards(open_source(iter([1])), 2), "does not know how many rows"),
    ],
)
def test_bad_calls(call: object, words: str) -> None:
    with pytest.raises((ConfigError, InputError), match=words):
        call()  # type: ignore[operator]


def test_rows_that_cost_nothing_are_shared_too() -> None:
    assert [len(shard) for shard in shards(9, 3, "balanced", cost=np.zeros(9))] == [3, 3, 3]
    costs = np.repeat([1.0, 0.0], [6, 60])
    assert [len(shard) for shard in shards(66, 3, "balanced", cost=costs)] == [22, 22, 22]
