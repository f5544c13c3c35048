"""Which errors say that a device has too little memory: several do, by their texts alone."""

from __future__ import annotations

import pytest

from penstock.errors import DeviceMemoryError
from penstock.model.shortage import is_out_of_memory


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


class InternalError(Exception):
    """Named as TensorFlow's."""


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhaustedError("OOM when allocating tensor"),
        InternalError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"),
        InternalError("Failed copying input tensor: Dst tensor is not initialized."),
        InternalError("CUDNN_STATUS_ALLOC_FAILED"),
        InternalError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
        DeviceMemoryError("a batch of 8 rows"),
    ],
    ids=str,
)
def test_too_little_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [InternalError("cuDNN says no"), ValueError("Out of memory"), MemoryError()], ids=repr
)
def test_what_is_something_else(error: Exception) -> None:
    assert not is_out_of_memory(error)
