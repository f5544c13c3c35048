"""How a large call is cut into pieces, and how many of them are on their way at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client import kinds
from penstock.client.allowance import Allowance
from penstock.client.kinds import Kind, ModelInfo
from penstock.spec import TensorSpec
from tests.conditions import until

GB = 1 << 30


def _kind(max_batch: int, row_bytes: int, memory: int = GB, batched: bool = True) -> Kind:
    info = ModelInfo(0, "test", max_batch, batched)
    return Kind(info, (TensorSpec("uint8", (row_bytes,)),), memory)


@pytest.mark.parametrize(
    ("max_batch", "row_bytes", "rows"),
    [
        (256, 150_528, 256),  # images of 224 x 224: one piece of 38 MB
        (1024, 150_528, 512),
        (256, 1_400_000, 64),  # three would do, but do not divide it
        (96, 8_000_000, 16),
        (127, 4_000_000, 31),  # a prime number: 4 of 31, and 3 rows are missing
        (32, 4, 32),
        (32, 0, 32),
        (8, 200_000_000, 1),
    ],
)
def test_pieces_fill_batches(max_batch: int, row_bytes: int, rows: int) -> None:
    assert _kind(max_batch, row_bytes).piece_rows == rows


@given(
    st.integers(1, 5000),
    st.integers(0, 1 << 28),
    st.integers(16, 34).map(lambda power: 1 << power),
)
def test_pieces_are_small_enough_and_fill_nearly_all_of_a_batch(
    max_batch: int, row_bytes: int, memory: int
) -> None:
    kind = _kind(max_batch, row_bytes, memory)
    rows = kind.piece_rows
    assert 1 <= rows <= max_batch
    assert rows == 1 or rows * row_bytes <= min(128 << 20, memory // 4)
    pieces = kind.window // kinds._AHEAD
    assert pieces * rows <= max_batch < pieces * (rows + 1)
    if max_batch & (max_batch - 1) == 0:
        assert pieces * rows == max_batch


def test_what_is_not_batched_is_one_piece() -> None:
    kind = _kind(32, 1 << 20, batched=False)
    assert kind.piece_rows > 1 << 30
    assert kind.window == 1


SIZES = """
import os, time
import numpy as np

def sizes(x):
    while not os.path.exists(__file__ + ".open"):
        time.sleep(0.002)
    return np.full(len(x), len(x))
"""


def test_a_large_call_runs_in_full_batches_and_is_sent_a_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 300 KB, of which 256 do not fit one piece of 64 MB, if that is the most."""
    monkeypatch.setattr(kinds, "PIECE_BYTES", 64 << 20)
    source = tmp_path / "sized.py"
    source.write_text(SIZES)
    x = np.zeros((7 * 256, 301_056), np.uint8)  # never written: it takes no memory
    answers: list[Any] = []
    full = threading.Event()
    wait = Allowance.wait_for

    def noted(*arguments: Any) -> None:
        full.set()
        wait(*arguments)

    monkeypatch.setattr(Allowance, "wait_for", noted)
    model = penstock.Model(f"{source}:sizes", max_batch=256)
    with penstock.Engine(model, devices="cpu") as engine, penstock.connect(engine.name) as client:
        thread = threading.Thread(target=lambda: answers.append(client.predict(x)))
        thread.start()
        try:
            assert full.wait(20)
            until(lambda: engine.statistics().requests.admitted == 12)
        finally:
            (tmp_path / "sized.py.open").touch()
            thread.join(20)
    (ran,) = answers
    assert len(ran) == len(x)
    assert ran[:128].tolist() == [128] * 128  # the first piece, when there was no other
    assert ran[128 : 11 * 128].tolist() == [256] * (10 * 128)  # what had queued
    assert set(ran.tolist()) == {128, 256}
