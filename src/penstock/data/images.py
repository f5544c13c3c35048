"""Encoded images to arrays: decode, turn upright, convert, resize. Through Pillow.

`Decoded` does this to a column of bytes of any source: files, Parquet, TFRecord. An image that
does not decode is a failed row.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Chunk, Fault
from penstock.data.extras import need
from penstock.data.source import Source, bounds, chunk_of, digest
from penstock.errors import ConfigError, InputError
from penstock.spec import STRING, Signature, TensorSpec

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
_RESAMPLE = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
_FIT = ("stretch", "crop", "pad")
_FORMATS = ("JPEG", "PNG", "WEBP")
_AT_ONCE = 32  # whose bytes are in memory; elsewhere they are fetched at the same time


@dataclass(frozen=True)
class Decoder:
    """How images become rows of one shape.

    `size` is (height, width), or one number for both. `fit`: "stretch" to it; "crop" the middle,
    keeping the proportions; or "pad" with black. Transparency is dropped unless `mode` is "RGBA".
    `draft` lets the JPEG decoder shrink by a power of two as it decodes, never below `size`: faster
    on large photographs, and not the same pixels.
    """

    size: Any
    mode: str = "RGB"
    resample: str = "bilinear"
    fit: str = "stretch"
    draft: bool = False

    def __post_init__(self) -> None:
        size = (self.size, self.size) if type(self.size) is int else self.size
        size = tuple(size) if isinstance(size, (list, tuple)) else ()
        if len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
            raise ConfigError(f"size: expected (height, width) in pixels, got {self.size!r}")
        object.__setattr__(self, "size", size)
        _one_of("mode", self.mode, tuple(_CHANNELS))
        _one_of("resample", self.resample, _RESAMPLE)
        _one_of("fit", self.fit, _FIT)

    @property
    def spec(self) -> TensorSpec:
        """What a row is."""
        return TensorSpec("uint8", (*self.size, _CHANNELS[self.mode]))

    def decode(self, data: bytes | str) -> Array | Fault:
        """The pixels, or why there are none."""
        if not data:
            return Fault("decode", "the image has no bytes")
        if isinstance(data, str):
            return Fault("decode", f"expected the bytes of an image, got the text {data[:80]!r}")
        pillow = need("PIL.Image", "decoding images")
        try:
            with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
                return self._upright(image)
        except pillow.UnidentifiedImageError:
            return Fault("decode", f"neither JPEG, PNG nor WebP; it begins with {data[:12]!r}")
        except MemoryError:
            raise
        except Exception as error:  # whatever a broken file makes a decoder raise
            return Fault("decode", f"{type(error).__name__}: {error}")

    def _upright(self, image: Any) -> Array:
        pillow = need("PIL.Image", "decoding images")
        operations = need("PIL.ImageOps", "decoding images")
        height, width = self.size
        if self.draft and image.format == "JPEG":
            longest = max(height, width)  # it may lie on its side
            image.draft(None, (longest, longest))
        image.load()
        image = _converted(operations.exif_transpose(image), self.mode)
        method = pillow.Resampling[self.resample.upper()]
        if image.size != (width, height):
            if self.fit == "stretch":
                image = image.resize((width, height), method)
            elif self.fit == "crop":
                image = operations.fit(image, (width, height), method)
            else:
                image = operations.pad(image, (width, height), method)
        return np.asarray(image, np.uint8).reshape(self.spec.sizes)


class Decoded(Source):
    """A source with a column of encoded images, decoded."""

    decodes = True

    def __init__(self, source: Source, decoder: Decoder, column: str = "") -> None:
        specs = {spec.name: spec for spec in source.signature}
        if column not in specs or specs[column].dtype != STRING or specs[column].shape:
            shown = {name: str(spec) for name, spec in specs.items()}
            raise InputError(f"expected a column {column!r} of encoded images, got {shown}")
        self._source, self._decoder, self._column = source, decoder, column
        self.seekable, self.together = source.seekable, source.together

    @property
    def rows(self) -> int | None:
        """The source's."""
        return self._source.rows

    @property
    def signature(self) -> Signature:
        """The source's, with pixels in place of bytes."""
        spec = self._decoder.spec
        pixels = TensorSpec(spec.dtype, spec.shape, self._column)
        return tuple(
            pixels if spec.name == self._column else spec for spec in self._source.signature
        )

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Decode these images, straight into `out` where it is given; a few at a time, so that
        their bytes are never all in memory."""
        start, stop = bounds(start, stop, self.rows)
        given = (out or {}).get(self._column)
        shape = (stop - start, *self._decoder.spec.sizes)
        pixels = np.empty(shape, np.uint8) if given is None else given
        chunks: list[Chunk] = []
        faults: dict[int, Fault] = {}
        done = start
        while done < stop or not chunks:
            chunk = self._source.read(done, min(done + _AT_ONCE, stop))
            self._decode(chunk, pixels[done - start :], done - start, faults)
            others = {name: c for name, c in chunk.columns.items() if name != self._column}
            chunks.append(Chunk(chunk.start, others, chunk.keys, chunk.failures))
            done += len(chunk)
            if not len(chunk):
                break
        columns = {
            name: pixels[: done - start]
            if name == self._column
            else np.concatenate([chunk.columns[name] for chunk in chunks])
            for name in (spec.name for spec in self._source.signature)
        }
        keys = np.concatenate([chunk.keys for chunk in chunks])
        again = chunk_of(start, columns, keys, faults, out)
        named = {failure.row: failure for chunk in chunks for failure in chunk.failures}
        return Chunk(
            again.start,
            again.columns,
            again.keys,
            tuple(named.get(failure.row, failure) for failure in again.failures),
        )

    def _decode(self, chunk: Chunk, pixels: Array, at: int, faults: dict[int, Fault]) -> None:
        """One after the other; `faults` count from `at` rows before these."""
        for failure in chunk.failures:
            faults[failure.row - chunk.start + at] = Fault(failure.kind, failure.message)
        for row, data in enumerate(chunk.columns[self._column]):
            found = Fault("", "") if at + row in faults else self._decoder.decode(data)
            if isinstance(found, Fault):
                faults.setdefault(at + row, found)
                pixels[row] = 0
            else:
                pixels[row] = found

    def only(self, names: Collection[str]) -> Source:
        """The images, and of the source's other columns these."""
        source = self._source.only({*names, self._column})
        return self if source is self._source else self._narrowed(names, _source=source)

    def column(self, name: str) -> Array:
        """The source's, where it need not be decoded."""
        return super().column(name) if name == self._column else self._source.column(name)

    def keys(self, start: int, stop: int) -> Array:
        """The source's, without decoding anything."""
        return self._source.read(start, stop).keys

    def costs(self) -> Array | None:
        """The source's."""
        return self._source.costs()

    def unchanged(self) -> bool:
        """The source is."""
        return self._source.unchanged()

    def fingerprint(self) -> str:
        """The source's, and how it is decoded."""
        return digest(
            self._source.fingerprint(), self._column, sorted(asdict(self._decoder).items())
        )

    def close(self) -> None:
        """Close what lies below."""
        self._source.close()


def _converted(image: Any, mode: str) -> Any:
    if image.mode == mode:
        return image
    if image.mode.startswith("I;16"):  # sixteen bits of grey: the upper eight
        pillow = need("PIL.Image", "decoding images")
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("P", "PA", "LA", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def _one_of(name: str, value: str, possible: tuple[str, ...]) -> None:
    if value not in possible:
        raise ConfigError(f"{name}: expected one of {', '.join(possible)}; got {value!r}")
