"""Plain functions as models: what they may return, and what is said of what they may not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from penstock.errors import ModelError, ModelLoadError, PenstockError
from penstock.model.function import Function, check_outputs
from penstock.spec import MAX_RANK, MAX_TENSORS, ModelSpec, TensorSpec


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        (None, "the output: expected an array.*NoneType"),
        ("text", "the output.*str"),
        (b"bytes", "the output.*bytes"),
        ((np.zeros(3), np.zeros(3)), "the output.*tuple"),
        (np.float32(1), "expected 3 rows.*scalar"),
        (np.zeros(2), "expected 3 rows.*got 2"),
        (np.zeros((0, 3)), "expected 3 rows.*got 0"),
        ([1, 2], "expected 3 rows.*got 2"),
        ({}, "empty dict|1 to 64 outputs"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "output 'b'.*expected 3 rows.*got 4"),
        ({"a": None}, "output 'a'.*NoneType"),
        (np.zeros(3, "datetime64[s]"), "datetime64"),
        (np.array([1, "a", None], object), "text or bytes"),
        (np.ma.masked_greater(np.arange(3.0), 1), "the output: .*without a mask"),
    ],
)
def test_outputs_that_cannot_be_sent(outputs: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        check_outputs(outputs, 3)


@pytest.mark.parametrize(
    "outputs",
    [
        {f"o{number}": np.zeros(3) for number in range(MAX_TENSORS + 1)},
        np.zeros((3,) + (1,) * (MAX_RANK + 1)),
        {"n" * 300: np.zeros(3)},
        {"\ud800": np.zeros(3)},
        {1: np.zeros(3), "1": np.zeros(3)},
    ],
)
def test_outputs_that_no_message_can_describe_are_the_models_fault(outputs: Any) -> None:
    """Sent all the same, they would look like a worker that broke the protocol."""
    with pytest.raises((PenstockError, UnicodeError)):
        check_outputs(outputs, 3)


@pytest.mark.parametrize(
    ("outputs", "signature"),
    [
        (np.zeros((3, 2), np.float16), (TensorSpec("float16", (2,)),)),
        ([[1.0], [2.0], [3.0]], (TensorSpec("float64", (1,)),)),
        (np.zeros((3, 0)), (TensorSpec("float64", (0,)),)),
        (np.zeros(3, ml_dtypes.bfloat16), (TensorSpec("bfloat16"),)),
        (["a", "b", "c"], (TensorSpec("string"),)),
        (
            {"a": np.zeros(3, bool), "b": np.zeros((3, 1), ">i4")},
            (TensorSpec("bool", (), "a"), TensorSpec("int32", (1,), "b")),
        ),
    ],
)
def test_outputs_that_can(outputs: Any, signature: Any) -> None:
    got, arrays = check_outputs(outputs, 3)
    assert got == signature
    assert all(array.flags.c_contiguous and array.dtype.isnative for array in arrays)


def test_views_become_contiguous() -> None:
    base = np.arange(12).reshape(3, 4)
    for view in (base[:, ::2], base[::-1], np.asfortranarray(base), base.astype(">i8")):
        _, (array,) = check_outputs(view, 3)
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, view)


def test_nuls_at_the_end_of_bytes_are_kept() -> None:
    _, (array,) = check_outputs([b"a\0", b"\0\0", b""], 3)
    assert array.tolist() == [b"a\0", b"\0\0", b""]


def test_a_function_is_checked_every_time() -> None:
    answers: list[Any] = [np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 3)), np.zeros((2, 3))]
    function = Function(lambda x: answers.pop(0), ModelSpec(), 4, True, "test")
    for _ in range(2):
        signature, _ = function(None, 2)
        assert signature == (TensorSpec("float64", (3,)),)
    with pytest.raises(ModelError, match="expected 2 rows"):
        function(None, 2)
    assert function(None, 2)[0] == (TensorSpec("float64", (3,)),)


def test_other_byte_orders_are_turned_every_time() -> None:
    function = Function(lambda x: np.array([1, 2], ">i4"), ModelSpec(), 4, True, "test")
    for _ in range(3):
        _, (array,) = function(None, 2)
        assert array.dtype.isnative
        assert array.tolist() == [1, 2]


def test_a_class_is_made_once() -> None:
    made: list[int] = []

    class Loaded:
        def __init__(self) -> None:
            made.append(1)

        def __call__(self, x: Any) -> Any:
            return x

    function = Function(Loaded, ModelSpec(), 4, True, "test")
    function(np.zeros(1), 1)
    function(np.zeros(1), 1)
    assert made == [1]


@pytest.mark.parametrize("target", [3, "text", object()])
def test_what_cannot_be_called_is_no_model(target: Any) -> None:
    with pytest.raises(ModelLoadError, match="cannot be called"):
        Function(target, ModelSpec(), 4, True, "somewhere:thing")
