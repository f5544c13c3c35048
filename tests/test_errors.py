"""The error tree: kinds that travel, causes that survive, and what may be retried."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle

import numpy as np
import pytest

from penstock import errors
from penstock.errors import Kind, PenstockError, RowsFailed, from_message

_CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, PenstockError)
]


def test_every_kind_makes_an_error_of_its_own_class() -> None:
    made = [type(from_message(kind, "why")) for kind in Kind]
    assert len(set(made)) == len(Kind)
    assert all(issubclass(cls, PenstockError) and cls is not PenstockError for cls in made)


def test_every_class_but_the_root_and_rows_failed_has_a_kind() -> None:
    made = {type(from_message(kind, "")) for kind in Kind}
    assert made == set(_CLASSES) - {PenstockError, RowsFailed}


def test_an_unknown_kind_is_still_an_error() -> None:
    assert type(from_message(250, "from a later release")) is PenstockError


def test_kinds_are_never_renumbered() -> None:
    assert {kind.name: int(kind) for kind in Kind} == {
        "INPUT": 1,
        "OVERLOADED": 2,
        "DEADLINE": 3,
        "CANCELLED": 4,
        "MODEL": 5,
        "WORKER_LOST": 6,
        "ENGINE_CLOSED": 7,
        "MODEL_LOAD": 8,
        "DEVICE_MEMORY": 9,
        "CONFIG": 10,
        "TRAINING": 11,
        "NO_WORKERS": 12,
    }


def test_the_remote_traceback_is_the_cause() -> None:
    error = from_message(Kind.MODEL, "ValueError: no", "Traceback: line 3")
    assert str(error) == "ValueError: no"
    assert isinstance(error.__cause__, errors.RemoteTraceback)
    assert "line 3" in str(error.__cause__)
    assert from_message(Kind.MODEL, "x").__cause__ is None


def test_what_may_be_retried() -> None:
    retryable = {cls.__name__ for cls in _CLASSES if cls.retryable}
    assert retryable == {"Overloaded", "WorkerLost", "NoWorkers", "EngineClosed"}


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InputError, ValueError),
        (errors.ConfigError, ValueError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.Cancelled, concurrent.futures.CancelledError),
    ],
)
def test_errors_are_caught_as_what_python_calls_them(
    cls: type[PenstockError], builtin: type[Exception]
) -> None:
    assert issubclass(cls, builtin)


def _rows_failed() -> RowsFailed:
    failures = {7: errors.ModelError("bad"), 3: errors.Overloaded("full")}
    return RowsFailed(9, failures, np.arange(9))


def test_rows_failed_names_rows_and_the_first_error() -> None:
    text = str(_rows_failed())
    assert "2 of 9 rows" in text
    assert "3, 7" in text
    assert "Overloaded: full" in text


def test_rows_failed_names_at_most_eight_rows() -> None:
    many = RowsFailed(100, {row: errors.ModelError("x") for row in range(50)}, None)
    assert "0, 1, 2, 3, 4, 5, 6, 7, …" in str(many)
    assert "8" not in str(many).partition("rows 0")[2]


@pytest.mark.parametrize("clone", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_rows_failed_survives_a_copy(clone) -> None:  # type: ignore[no-untyped-def]
    again = clone(_rows_failed())
    assert again.rows == 9
    assert sorted(again.errors) == [3, 7]
    assert str(again.errors[7]) == "bad"
    np.testing.assert_array_equal(again.results, np.arange(9))


def test_rows_failed_is_retryable_only_when_every_row_is() -> None:
    assert not _rows_failed().retryable
    assert RowsFailed(2, {0: errors.Overloaded("x")}, None).retryable


@pytest.mark.parametrize("cls", [cls for cls in _CLASSES if cls is not RowsFailed])
def test_every_error_survives_pickling(cls: type[PenstockError]) -> None:
    again = pickle.loads(pickle.dumps(cls("why")))
    assert type(again) is cls
    assert again.args == ("why",)
