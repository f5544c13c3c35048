"""When two answers count as the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from penstock.model.agreement import difference

Array = np.ndarray[Any, Any]
_FLOATS = np.array([[1.0, -2.0, 0.0], [1e-6, 3.0, 4.0]], np.float32)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16]
)
def test_rounding_is_no_difference(dtype: Any) -> None:
    ours = _FLOATS.astype(dtype)
    assert difference([ours], [ours], 0.0) == ""
    near = (_FLOATS * (1 + 1e-4)).astype(dtype)
    assert difference([near], [ours], 1e-2) == ""
    far = (_FLOATS + np.float32(0.5)).astype(dtype)
    assert "differs by a share of" in difference([far], [ours], 1e-2)


def test_small_values_are_measured_by_the_outputs_average() -> None:
    off = _FLOATS.copy()
    off[0, 2] = 1e-5
    assert difference([off], [_FLOATS], 1e-3) == ""
    off[0, 2] = 0.1
    assert "0.1" in difference([off], [_FLOATS], 1e-3)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_whole_numbers_must_be_equal(dtype: Any) -> None:
    one = np.array([0, 1, 1], dtype)
    other = np.array([0, 1, 0], dtype)
    assert difference([one], [one], 0.5) == ""
    assert "1 of 3 elements" in difference([one], [other], 0.5)


def test_strings_must_be_equal() -> None:
    one = np.array([b"a", b"b"], object)
    other = np.array([b"a", b"c"], object)
    assert difference([one], [one], 0.5) == ""
    assert "1 of 2 elements" in difference([one], [other], 0.5)


def test_infinities_and_nans_must_be_in_the_same_places() -> None:
    strange = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert difference([strange], [strange], 1e-3) == ""
    for other in ([np.nan, np.inf, np.inf, 1.0], [0.0, np.inf, -np.inf, 1.0], [np.nan] * 4):
        assert "infinities or NaNs" in difference([np.array(other)], [strange], 1e-3)
        assert "infinities or NaNs" in difference([strange], [np.array(other)], 1e-3)


def test_shapes_dtypes_and_numbers_of_outputs() -> None:
    assert "2 outputs in place of 1" in difference([_FLOATS, _FLOATS], [_FLOATS], 1.0)
    assert "float32 [1, 3] in place of float32 [2, 3]" in difference([_FLOATS[:1]], [_FLOATS], 1.0)
    assert "float64" in difference([_FLOATS.astype(np.float64)], [_FLOATS], 1.0)
    assert difference([_FLOATS, _FLOATS[:0]], [_FLOATS, _FLOATS[:0]], 0.0) == ""
    wrong = difference([_FLOATS, _FLOATS], [_FLOATS, _FLOATS * 2], 1e-3)
    assert wrong.startswith("output 1 differs")
