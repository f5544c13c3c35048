"""Rows to try a model with, before anybody has asked it anything.

They come from the user (`Model(sample="module:function")`), or they are made up by dtype and shape:
fractions between 0 and 1, larger in one row than in another; whole numbers 0 and 1 (a larger one
may be no index of a table); bytes over their whole range; words. If the model does not take those,
smaller numbers and encoded images. Open sizes are guessed. The same rows come every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.errors import DeviceMemoryError, ModelLoadError, PenstockError
from penstock.model.shortage import is_out_of_memory
from penstock.model.source import resolve
from penstock.spec import STRING, ModelSpec, Signature, TensorSpec
from penstock.transport.tensors import Array, collect, empty_aligned, numpy_dtype

_DIFFERENT = 8
_OPEN_SIZES = (32, 8, 128)
_WORDS = (b"one", b"two words", b"", b"Penstock", b"a b c", b"0", b"more", b"yes")
_IMAGE_SIZE = 64


class Samples:
    """A few different rows, of which as many can be had as are wanted."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays
        self.different = len(arrays[0])
        self.place: Callable[[Array], Any] = lambda array: array  # where batches are gathered

    def rows(self, count: int) -> list[Any]:
        """So many rows, one after the other and from the start again, as a batch has them."""
        chosen = self.chosen([row % self.different for row in range(count)])
        return [self.place(array) for array in chosen]

    def chosen(self, which: list[int]) -> list[Array]:
        """These rows, by number, in this order."""
        arrays: list[Array] = []
        for array in self._arrays:
            rows: Array = array[which]
            if array.dtype != object:
                rows = empty_aligned(rows.shape, array.dtype)
                rows[...] = array[which]
            arrays.append(rows)
        return arrays


Try = Callable[[Samples], Any]


def find_samples(inputs: Signature, source: str, attempt: Try) -> tuple[Samples | None, str]:
    """Rows that the model takes; or `None`, and why there are none.

    `attempt` runs the model and raises if it does not take them. Raises `ModelLoadError` when the
    rows are the user's. Where memory was too small for some and the model took no others, that is
    raised.
    """
    if source:
        return _given(inputs, source, attempt), ""
    why = "it has no inputs"
    short: Exception | None = None
    for samples in made_up(inputs):
        try:
            attempt(samples)
        except Exception as error:
            if _is_short(error):
                short = error  # smaller ones may still fit
            why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        else:
            return samples, ""
    if short is not None:
        raise short
    return None, f"the model takes none of the inputs that were made up for it ({why})"


def _given(inputs: Signature, source: str, attempt: Try) -> Samples:
    try:
        signature, arrays, rows = collect(resolve(source)(), ModelSpec(inputs))
        if rows == 0:
            raise ModelLoadError("it has no rows")
        if len(inputs) > 1:
            by_name = {tensor.name: array for tensor, array in zip(signature, arrays, strict=True)}
            arrays = [by_name[tensor.name] for tensor in inputs]
        samples = Samples([array.astype(array.dtype.newbyteorder("=")) for array in arrays])
        attempt(samples)
    except Exception as error:
        if _is_short(error):
            raise
        if isinstance(error, PenstockError):
            raise ModelLoadError(f"sample {source!r}: {error}") from error
        raise ModelLoadError(f"sample {source!r}: {type(error).__name__}: {error}") from error
    return samples


def _is_short(error: Exception) -> bool:
    return isinstance(error, DeviceMemoryError) or is_out_of_memory(error)


def made_up(inputs: Signature) -> Iterator[Samples]:
    """One guess after the other at what a model may take."""
    is_open = any(None in tensor.shape for tensor in inputs)
    for plain in (True, False):
        for size in _OPEN_SIZES if is_open else (0,):
            generator = np.random.default_rng(0)
            yield Samples([_row_values(tensor, size, plain, generator) for tensor in inputs])


def _row_values(
    tensor: TensorSpec, open_size: int, plain: bool, generator: np.random.Generator
) -> Array:
    shape = (_DIFFERENT, *(open_size if size is None else size for size in tensor.shape))
    if tensor.dtype == STRING:
        return _words(shape) if plain else _images(shape, generator)
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind in "biu":
        high = 256 if tensor.dtype == "uint8" and plain else 2
        return generator.integers(0, high, shape).astype(dtype)
    scale = np.linspace(0.25, 1, _DIFFERENT).reshape(-1, *(1 for _ in shape[1:]))
    values: Array = generator.random(shape) * scale
    if dtype.kind == "c":
        values = values + 1j * generator.random(shape)
    return values.astype(dtype)


def _words(shape: tuple[int, ...]) -> Array:
    words = np.empty(shape, object)
    flat = words.reshape(-1)
    each = max(flat.size // shape[0], 1)
    for index in range(flat.size):
        flat[index] = _WORDS[(index // each + index % each) % len(_WORDS)]
    return words


def _images(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    from penstock.model.runtime import tf

    images = np.empty(shape, object)
    flat = images.reshape(-1)
    for index in range(flat.size):
        pixels = generator.integers(0, 256, (_IMAGE_SIZE, _IMAGE_SIZE, 3), np.uint8)
        flat[index] = tf.io.encode_png(pixels).numpy()
    return images
