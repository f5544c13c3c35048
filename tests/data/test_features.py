"""Numbers that a dtype has no place for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from penstock.data.features import lost, stack
from penstock.spec import TensorSpec
from penstock.transport.tensors import numpy_dtype


@pytest.mark.parametrize(("name", "low", "high"), [("int4", -8, 7), ("uint4", 0, 15)])
def test_whole_numbers_of_four_bits(name: str, low: int, high: int) -> None:
    dtype = numpy_dtype(name)
    given = np.array([low - 1, low, high, high + 1])
    assert lost(given, dtype).tolist() == [True, False, False, True]
    assert lost(given.astype(float), dtype).tolist() == [True, False, False, True]
    assert lost(np.array([0.5, 1.0, np.nan]), dtype).tolist() == [True, False, True]
    faults: dict[int, object] = {}
    assert stack([1, 2, 3], TensorSpec(name, (), "a"), faults).tolist() == [1, 2, 3]
    assert faults == {}
    few = np.array([low, high]).astype(dtype)
    for wider in ("int8", "int64", "float16", "float32", "bfloat16"):
        assert not lost(few, numpy_dtype(wider)).any()
    assert lost(few, np.dtype(np.uint8)).tolist() == [low < 0, False]
    other = ml_dtypes.uint4 if name == "int4" else ml_dtypes.int4
    assert lost(few, np.dtype(other)).tolist() == [low < 0, high > 7]
