"""Arrays that TensorFlow uses where they are, and those that it gets a copy of."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.spec import DTYPES, STRING
from penstock.transport.tensors import address_of, numpy_dtype
from tests.model.graphs import aligned
from tests.model.tensorflow_process import in_tensorflow

_COPIED = {"float8_e4m3fn", "float8_e5m2", "int4", "uint4"}


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {STRING}))
@in_tensorflow
def test_both_ways_and_without_a_copy(name: str) -> None:
    from penstock.model.handover import to_array, to_tensor

    array = aligned(np.arange(12).reshape(4, 3).astype(numpy_dtype(name)))
    tensor = to_tensor(array)
    assert tensor.dtype.name == name
    back = to_array(tensor)
    assert back.dtype == array.dtype
    assert back.flags.c_contiguous
    assert back.tolist() == array.tolist()
    assert (address_of(back) == address_of(array)) == (name not in _COPIED)
    assert address_of(to_array(tensor)) == address_of(back)  # out of TensorFlow nothing is copied


@in_tensorflow
def test_what_tensorflow_cannot_use_in_place_is_copied() -> None:
    """It aborts the process when memory is not aligned as it likes."""
    import tensorflow as tf

    from penstock.model.handover import shareable, to_array, to_tensor

    base = aligned(np.arange(64, dtype=np.float32))
    read_only = aligned(base)
    read_only.flags.writeable = False
    for array in (base[1:], base[::2], base.reshape(8, 8).T, read_only, base[:0]):
        assert not shareable(array)
        tensor = to_tensor(array)
        np.testing.assert_array_equal(to_array(tensor), array)
        tf.matmul(tensor[None, ...] if tensor.ndim == 1 else tensor, tf.ones([array.shape[-1], 2]))


@in_tensorflow
def test_strings() -> None:
    from penstock.model.handover import to_array, to_tensor

    words = np.array([[b"one", b""], [b"two\0", b"\xff"]], object)
    back = to_array(to_tensor(words))
    assert back.dtype == object
    assert back.tolist() == words.tolist()
    empty = to_tensor(np.empty((0, 2), object))
    assert empty.dtype.name == "string"
    assert empty.shape == (0, 2)


@in_tensorflow
def test_the_array_lives_as_long_as_the_tensor() -> None:
    import gc

    from penstock.model.handover import to_array, to_tensor

    tensors = [to_tensor(aligned(np.full(100_000, n, np.float32))) for n in range(20)]
    gc.collect()
    arrays = [to_array(tensor) for tensor in tensors]
    del tensors
    gc.collect()
    assert [array[-1] for array in arrays] == list(range(20))


@in_tensorflow
def test_what_describes_a_device_s_memory_is_there_until_tensorflow_is_done_with_it() -> None:
    """Played on the host's memory. The rows' owner may be gone before the tensor is."""
    import gc

    from penstock.model import handover

    array = aligned(np.arange(12, dtype=np.float32).reshape(4, 3))
    made = handover.on_device(address_of(array), array.shape, array.dtype, kind=1)
    assert handover.to_array(made.tensor).tolist() == array.tolist()
    (kept,) = handover._described.values()
    assert kept[0].data == address_of(array)
    tensor = made.tensor
    del made, kept
    gc.collect()
    assert len(handover._described) == 1  # it is the tensor's, and not that of what holds it
    del tensor
    gc.collect()
    assert not handover._described
    with pytest.raises(Exception, match="Unsupported Device"):
        handover.on_device(address_of(array), array.shape, array.dtype, kind=99)
    assert not handover._described
