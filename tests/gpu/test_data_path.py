"""Rows on their way through the GPU: every answer is checked against its own row."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

PLACES = np.arange(4096) % 97 + 1

ASKER = """
import sys, numpy as np, penstock
address, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
places = np.arange(4096) % 97 + 1
rng = np.random.default_rng(seed)
client = penstock.connect(address, wait=60)
open_ = []
for number in range(count):
    x = rng.integers(0, 256, (int(rng.integers(1, 4)) if number % 3 else 1, 4096), np.uint8)
    wide = x.astype(np.int64)
    open_.append((np.stack([wide.sum(1), (wide * places).sum(1)], 1), client.submit(x)))
    while len(open_) > (32 if number < count - 1 else 0):
        wanted, future = open_.pop(0)
        got = future.result(timeout=120)
        assert np.allclose(got, wanted, rtol=1e-5), (seed, number, got, wanted)
print("right")
"""


def sums(x: Any) -> Any:
    wide = x.astype(np.int64)
    return np.stack([wide.sum(1), (wide * PLACES).sum(1)], 1)


def test_every_row_gets_its_own_answer_from_many_processes(
    engine: Callable[..., penstock.Engine],
) -> None:
    shared = engine("checksum", max_batch=64)
    facts = shared.statistics().models[0].facts
    assert facts["device"] == "GPU"
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, str(shared.address), str(seed), "4000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(6)
    ]
    assert [asker.communicate(timeout=240)[0] for asker in askers] == ["right\n"] * 6
    told = shared.statistics()
    assert told.requests.failed == 0
    assert told.workers[0].starts == 1
    assert max(told.batches.sizes) > 1


def test_a_large_array_in_one_call(engine: Callable[..., penstock.Engine]) -> None:
    shared = engine("checksum", max_batch=256)
    x = np.random.default_rng(3).integers(0, 256, (50_000, 4096), np.uint8)
    assert np.allclose(shared.predict(x), sums(x), rtol=1e-5)


def test_sizes_between_the_rungs_are_padded_and_cut_back(
    engine: Callable[..., penstock.Engine],
) -> None:
    shared = engine("checksum", max_batch=32)
    rng = np.random.default_rng(5)
    for rows in (1, 2, 3, 5, 17, 31, 32, 33, 100):
        x = rng.integers(0, 256, (rows, 4096), np.uint8)
        assert np.allclose(shared.predict(x), sums(x), rtol=1e-5)
    assert shared.predict(x[:0]).shape == (0, 2)


def test_kinds_that_stay_on_the_host(engine: Callable[..., penstock.Engine]) -> None:
    shared = engine("mixed", max_batch=16)
    rng = np.random.default_rng(7)
    for rows in (1, 5, 16, 40):
        a = rng.normal(size=(rows, 3)).astype("float32")
        b = rng.integers(-1000, 1000, rows).astype("int32")
        c = rng.integers(-(1 << 40), 1 << 40, (rows, 2))
        got = shared.predict({"a": a, "b": b, "c": c})
        assert np.allclose(got["total"], a.sum(1) + b, rtol=1e-4, atol=1e-3)
        assert np.array_equal(got["c"], c * 2)
        assert np.array_equal(got["b"], b + 1)
