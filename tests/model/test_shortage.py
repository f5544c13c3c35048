"""Which errors say that a device has too little memory: several do, by their texts alone."""

from __future__ import annotations

import pytest

from penstock.errors import DeviceMemoryError
from penstock.model.samples import Samples, find_samples
from penstock.model.shortage import is_out_of_memory, leaves_no_room
from penstock.spec import TensorSpec


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


class InternalError(Exception):
    """Named as TensorFlow's."""


class NotFoundError(Exception):
    """Named as TensorFlow's."""


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhaustedError("OOM when allocating tensor"),
        InternalError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"),
        InternalError("Failed copying input tensor: Dst tensor is not initialized."),
        InternalError("CUDNN_STATUS_ALLOC_FAILED"),
        InternalError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
        NotFoundError(
            "No algorithm worked! Profiling failure on CUDNN engine eng1{}: RESOURCE_EXHAUSTED"
        ),
    ],
    ids=str,
)
def test_too_little_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        InternalError("cuDNN says no"),
        NotFoundError("No registered 'Foo' OpKernel for 'GPU' devices"),
        ValueError("Out of memory"),
        MemoryError(),
        DeviceMemoryError("not even one row fits"),  # ours, and not to be tried again
        ResourceExhaustedError("/cache/xla/one.pb.tmp; No space left on device"),
    ],
    ids=repr,
)
def test_what_is_something_else(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_what_the_autotuner_could_not_try_in_a_mode_that_has_worked_before() -> None:
    untried = InternalError(
        "Autotuning failed for HLO: %conv.81: NOT_FOUND: No valid config found!"
    )
    assert leaves_no_room(untried)
    assert not is_out_of_memory(untried)  # it may not be able to compile this model at all
    assert leaves_no_room(ResourceExhaustedError("OOM when allocating tensor"))
    assert not leaves_no_room(InternalError("cuDNN says no"))
    assert not leaves_no_room(ValueError("No valid config found"))


def test_rows_that_do_not_fit_are_not_rows_that_the_model_does_not_take() -> None:
    inputs = (TensorSpec("float32", (None,)),)
    tried: list[int] = []

    def attempt(samples: Samples, most: int) -> None:
        width = samples.rows(1)[0].shape[1]
        tried.append(width)
        if width > most:
            raise DeviceMemoryError(f"{width} are too many")

    found, _ = find_samples(inputs, "", lambda samples: attempt(samples, 20))
    assert found is not None
    assert max(tried) > 20 >= tried[-1]  # smaller ones are tried, too
    with pytest.raises(DeviceMemoryError, match="are too many"):
        find_samples(inputs, "", lambda samples: attempt(samples, 0))
