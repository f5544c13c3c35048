"""The sizes of batches that a start begins with: those found out before, as far as they can be had.

They are cut by the memory that there is now (`peak.cut`). Where the settings want the largest size
alone, for work in large batches, that is no larger than one request: what is put together of
several would be padded whenever they do not come together. And a worker that begins in the place of
one that ran out of memory as it loaded (`SQUEEZED`) begins with fewer rows: what its predecessor
had tried is not lying about in its memory any more, and a size that was compiled before takes less
to load than to compile.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.config import Model
from penstock.devices.limit import SQUEEZED
from penstock.model.findings import Findings
from penstock.model.peak import Need, buffered_rows, cut
from penstock.spec import STRING, Signature
from penstock.transport.pieces import piece_rows

_SQUEEZE = 0.6


class Beginning(NamedTuple):
    """`sizes` to begin with; `planned`: the largest one, had no worker run out of memory before."""

    sizes: tuple[int, ...]
    planned: int


def beginning(findings: Findings, model: Model, inputs: Signature, limit: int) -> Beginning:
    """What was found out, for a device with so much memory (0: that is not known)."""
    given = model.ladder or model.max_batch
    buffered = 0 if given else buffered_rows(inputs)
    sizes = cut(findings.sizes(model.ladder), Need.told(findings.memory), limit, buffered)
    if model.warm == "largest":
        sizes = (sizes[-1] if given else _of_one_request(sizes[-1], inputs),)
    return Beginning(_squeezed(sizes), sizes[-1])


def _of_one_request(most: int, inputs: Signature) -> int:
    if any(None in tensor.shape or tensor.dtype == STRING for tensor in inputs):
        return most
    return piece_rows(most, sum(tensor.row_bytes for tensor in inputs))


def _squeezed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    times = int(os.environ.get(SQUEEZED) or 0)
    if not times:
        return sizes
    most = max(int(sizes[-1] * _SQUEEZE**times), 1)
    return tuple(size for size in sizes if size <= most) or (most,)
