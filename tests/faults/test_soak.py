"""The soak test in short, and that its judge would see what it is there to see."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.campaign import Outcome
from benchmarks.soak.client import Asker
from benchmarks.soak.digits import APART, Digits, distinct
from benchmarks.soak.ledger import Judgement, Ledger, Reader
from benchmarks.soak.report import faults
from benchmarks.soak.work import checksum, is_right
from penstock.errors import WorkerLost

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_twenty_seconds_of_kills(folder):
    result = folder / "soak.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "20", "--json", str(result)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(result.read_text())
    assert counts["faults"] == []
    assert counts["right"] > 1000
    assert counts["killed_workers"] >= 8
    assert counts["killed_clients"] >= 8
    assert counts["worker_restarts"] >= 8


def _judged(tmp_path, *events, killed=False) -> list[str]:
    ledger = Ledger(tmp_path / "ledger")
    ledger.enter("asked", 1)
    ledger.enter("right", 1)
    for event, number in events:
        ledger.enter(event, number)
    outcome = Outcome(judgement=Judgement())
    outcome.judgement.add(tmp_path / "ledger", killed)
    ledger.close()
    return faults(outcome)


def test_a_clean_ledger_passes(tmp_path):
    assert _judged(tmp_path, ("asked", 2), ("WorkerLost", 2)) == []


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([("asked", 2), ("WRONG", 2)], "1 answers that were wrong"),
        ([("asked", 2)], "1 requests without an answer"),
        ([("asked", 2), ("MISSING", 2)], "1 requests without an answer"),
        ([("right", 1)], "1 requests that ended twice"),
        ([("WorkerLost", 1)], "1 requests that ended twice"),
        ([("right", 5)], "1 answers that nobody asked for"),
        ([("asked", 2), ("OTHER ERROR", 2)], "1 errors that may not be retried"),
    ],
)
def test_a_ledger_with_a_fault_does_not(tmp_path, events, fault):
    assert _judged(tmp_path, *events) == [fault]


def test_what_a_killed_client_had_open_is_no_fault(tmp_path):
    assert _judged(tmp_path, ("asked", 2), killed=True) == []


def test_a_ledger_is_counted_while_it_grows(tmp_path):
    reader = Reader(tmp_path / "ledger")
    assert not reader.new_counts()
    ledger = Ledger(tmp_path / "ledger")
    ledger.enter("asked", 1, 2, 3)
    assert reader.new_counts()["asked"] == 3
    ledger.enter("right", 1)
    assert +reader.new_counts() == {"right": 1}
    ledger.close()


@pytest.mark.parametrize("size", [0, 1, 64, 1001])
def test_only_the_right_answer_is_right(size):
    numbers = np.array([7, 8], np.uint64)
    data = np.random.default_rng(0).integers(0, 256, (2, size), np.uint8)
    first, second = (
        {name: array[row] for name, array in checksum({"number": numbers, "data": data}).items()}
        for row in range(2)
    )
    assert is_right(7, data[0], first)
    assert not is_right(7, data[0], second)
    assert not is_right(8, data[0], first)
    if size:
        assert not is_right(7, data[0] ^ 1, first)


# ── digits ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def digits(tmp_path) -> Digits:
    """Four images whose answers are one of the four classes each."""
    answers = np.full((4, 4), 0.1, np.float32) + 0.6 * np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "digits.npz", images=np.zeros((4, 2, 2, 1), np.float32), answers=answers)
    return Digits(tmp_path / "digits.npz")


def _answer(row: int, **changed: float) -> np.ndarray:
    answer = np.full(4, 0.1, np.float32)
    answer[row] = 0.7
    answer[0] += changed.get("off", 0.0)
    return answer


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (_answer(2), True),
        (_answer(2, off=5e-5), True),  # rounding
        (_answer(2, off=5e-4), False),
        (_answer(2, off=float("nan")), False),
        (_answer(1), False),  # another row's
        (_answer(2)[:3], False),
    ],
)
def test_a_digit_is_checked_against_its_own_answer(digits, answer, right):
    assert digits.is_right(9, 2, answer) is right
    assert digits.owner({8: 0, 9: 2}, answer) == (9 if right else None)


def test_digits_with_like_answers_are_left_out():
    answers = np.array([[0.9, 0.1], [0.9 - APART / 2, 0.1], [0.2, 0.8], [0.5, 0.5]])
    assert distinct(answers) == [0, 2]


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ([_answer(1), _answer(0)], []),
        ([_answer(1), WorkerLost("")], []),
        ([_answer(1), _answer(3)], ["1 answers that were wrong"]),
        ([_answer(1)], ["1 requests without an answer"]),
        (
            [_answer(1), _answer(0), _answer(1)],
            ["1 answers that were wrong", "1 requests that ended twice"],
        ),
    ],
)
def test_answers_in_any_order_are_matched_to_their_digits(digits, tmp_path, answers, fault):
    ledger = Ledger(tmp_path / "ledger")
    ledger.enter("asked", 7, 8)
    Asker(None, digits, ledger, 0)._match({7: 0, 8: 1}, iter(answers))
    outcome = Outcome()
    outcome.judgement.add(tmp_path / "ledger", killed=False)
    ledger.close()
    assert faults(outcome) == fault
