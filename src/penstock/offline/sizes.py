"""How large rows are: by what is declared of them, and for texts and files by looking.

What is cut by these sizes stands in the manifest, so they need only be about right; but photographs
that a model decodes itself are 4 MB each, not a few KB, and a batch of them must fit into memory.
"""

from __future__ import annotations

import numpy as np

from penstock.data.chunk import Array
from penstock.data.source import Source
from penstock.offline.setting_up import Served
from penstock.spec import STRING, Signature

_TEXT_BYTES = 8 << 10  # what a text or an encoded image is taken to be, at least
_LOOK_ROWS = 16
_KNOWN_ROWS = 65_536  # whose sizes are asked for at a time
_REQUEST_BYTES = 64 << 20  # of texts: less than a client cuts rows of known sizes by


def row_size(source: Source, served: Served, batch: int) -> int:
    """Bytes of a row, in and out, where a batch of them is largest."""
    outputs = tuple(spec for spec in served.spec.outputs or () if None not in spec.shape)
    return _texts(source, batch) + _declared(source.signature) + _declared(outputs)


def fitting(batch: int, size: int, source: Source) -> int:
    """Rows that are one request: fewer than a batch where texts are large, an even part of it."""
    if not _has_texts(source):
        return batch  # the client has seen to it
    pieces = -(-batch * size // _REQUEST_BYTES)
    return max(batch // max(pieces, 1), 1)


def _declared(signature: Signature) -> int:
    """Of an output, too, a text is taken for a short one."""
    return sum(_TEXT_BYTES if spec.dtype == STRING else spec.row_bytes for spec in signature)


def _has_texts(source: Source) -> bool:
    return any(spec.dtype == STRING for spec in source.signature)


def _texts(source: Source, batch: int) -> int:
    """What texts take beyond what is declared. Of files all sizes are known, and of most rows."""
    if not _has_texts(source):
        return 0
    sizes = source.costs()
    mean = _known(source, batch) if sizes is None else _largest_mean(sizes, batch)
    if mean is None:
        mean = _looked_at(source)
    return max(mean - _TEXT_BYTES, 0)


def _known(source: Source, batch: int) -> int | None:
    """The mean of the batch with most bytes, where the source knows how large its rows are."""
    largest = 0
    step = max(_KNOWN_ROWS // batch, 1) * batch
    for start in range(0, source.rows or 0, step):
        sizes = source.sizes(start, start + step)
        if sizes is None:
            return None
        sums = np.add.reduceat(sizes, np.arange(0, len(sizes), batch))
        largest = max(largest, int(sums.max()) // batch)
    return largest if source.rows is not None else None


def _looked_at(source: Source) -> int:
    """Bytes of the largest texts among the first rows, which are read first anyway."""
    if not source.seekable or not source.rows:
        return 0
    chunk = source.read(0, min(_LOOK_ROWS, source.rows))
    texts = [column for column in chunk.columns.values() if column.dtype == object]
    found = [sum(_length(column[at]) for column in texts) for at in range(len(chunk))]
    return max(found, default=0)


def _length(value: object) -> int:
    if isinstance(value, np.ndarray):
        return sum(map(_length, value.ravel().tolist()))
    return len(value) if isinstance(value, (str, bytes)) else 0


def _largest_mean(sizes: Array, rows: int) -> int:
    """Of so many that follow each other, the largest mean."""
    if not len(sizes):
        return 0
    sums = np.concatenate([[0], np.cumsum(sizes)])
    rows = min(rows, len(sizes))
    return int((sums[rows:] - sums[:-rows]).max()) // rows
