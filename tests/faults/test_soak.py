"""The soak test in short, and that its judge would see what it is there to see."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.campaign import Outcome
from benchmarks.soak.client import Asker
from benchmarks.soak.digits import APART, Digits, distinct
from benchmarks.soak.ledger import Judgement, Ledger, Reader, waits_since
from benchmarks.soak.report import faults
from benchmarks.soak.work import checksum, is_right
from penstock.errors import WorkerLost
from tests.faults.broken import broken

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 5.0


def _soaked(folder, *options: str) -> tuple[int, dict, str]:
    """A run's exit code, its counts, and what it said."""
    result = folder / "soak.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--json", str(result), *options]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=140)
    said = done.stdout + done.stderr
    assert result.exists(), said
    return done.returncode, json.loads(result.read_text()), said


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_twenty_seconds_of_kills(folder):
    code, counts, said = _soaked(folder, "--seconds", "20")
    assert code == 0, said
    assert counts["faults"] == []
    assert counts["right"] > 1000
    assert counts["killed_workers"] >= 8
    assert counts["killed_clients"] >= 8
    assert counts["worker_restarts"] >= 8


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_an_engine_that_loses_answers_is_found(folder, monkeypatch):
    """One in five hundred, in clients of which some are killed."""
    broken(monkeypatch, "lose_answers", 500)
    code, counts, said = _soaked(folder, "--seconds", "4", "--patience", "2")
    assert code == 1
    assert counts["missing"] > 0, said
    assert any("requests without an answer" in fault for fault in counts["faults"])
    assert counts["right"] > 300, "it lost some answers, not all"


def _judged(tmp_path, *events, killed_after: float | None = None, right: int = 20) -> list[str]:
    """What is found in a ledger with so many right answers, and these events after them."""
    ledger = Ledger(tmp_path / "ledger")
    numbers = range(1, right + 1)
    ledger.enter("asked", *numbers)
    ledger.enter("right", *numbers)
    for event, number in events:
        ledger.enter(event, number)
    ledger.close()
    outcome = Outcome(Judgement(_PATIENCE))
    killed_at = time.monotonic_ns() + int(killed_after * 1e9) if killed_after is not None else None
    outcome.judgement.add(tmp_path / "ledger", killed_at)
    return faults(outcome)


def test_a_clean_ledger_passes(tmp_path):
    assert _judged(tmp_path, ("asked", 92), ("WorkerLost", 92)) == []


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([("asked", 92), ("WRONG", 92)], "1 answers that were wrong"),
        ([("asked", 92)], "1 requests without an answer"),
        ([("asked", 92), ("MISSING", 92)], "1 requests without an answer"),
        ([("right", 1)], "1 requests that ended twice"),
        ([("WorkerLost", 1)], "1 requests that ended twice"),
        ([("right", 95)], "1 answers that nobody asked for"),
        ([("asked", 92), ("OTHER ERROR", 92)], "1 errors that may not be retried"),
        (
            [("asked", 92), ("EngineClosed", 92)],
            "1 requests that were told that the engine had ended",
        ),
    ],
)
def test_a_ledger_with_a_fault_does_not(tmp_path, events, fault):
    assert _judged(tmp_path, *events) == [fault]


def test_nothing_but_errors_does_not_pass(tmp_path):
    events = [(event, number) for number in (91, 92) for event in ("asked", "WorkerLost")]
    assert _judged(tmp_path, *events, right=18) == []
    (tmp_path / "ledger").unlink()
    assert _judged(tmp_path, *events, right=17) == ["only 17 right answers of 19"]
    (tmp_path / "ledger").unlink()
    assert _judged(tmp_path, right=0) == ["only 0 right answers of 0"]


@pytest.mark.parametrize(
    ("waited", "fault"),
    [(0.0, []), (_PATIENCE - 1, []), (_PATIENCE + 1, ["1 requests without an answer"])],
)
def test_what_a_killed_client_had_open_is_no_fault_unless_for_too_long(tmp_path, waited, fault):
    assert _judged(tmp_path, ("asked", 92), killed_after=waited) == fault


def test_a_client_waits_since_it_asked_for_what_is_open_the_longest(tmp_path):
    assert waits_since(tmp_path / "ledger") is None
    ledger = Ledger(tmp_path / "ledger")
    ledger.enter("asked", 1)
    before = time.monotonic_ns()
    ledger.enter("asked", 2)
    between = time.monotonic_ns()
    ledger.enter("asked", 3)
    assert waits_since(tmp_path / "ledger") < before
    ledger.enter("right", 1)
    assert before <= waits_since(tmp_path / "ledger") <= between
    ledger.enter("right", 3)
    ledger.enter("Cancelled", 2)
    assert waits_since(tmp_path / "ledger") is None
    ledger.close()


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
    ledger.enter("asked", *range(10, 30), 7, 8)
    ledger.enter("right", *range(10, 30))
    Asker(None, digits, ledger, 0, _PATIENCE)._match({7: 0, 8: 1}, iter(answers))
    outcome = Outcome(Judgement(_PATIENCE))
    outcome.judgement.add(tmp_path / "ledger")
    ledger.close()
    assert faults(outcome) == fault
