"""The sizes of batches that a start begins with: those found out before, as far as they can be had.

They are cut by the memory that there is now (`peak.cut`), and beside other models to what the
engine has planned. XLA tries many ways to compile a size, several at a time, which takes more
memory than to run it, and what it could not try it leaves behind: so where memory cuts a ladder, it
ends with a size that was compiled before, if there is one not much smaller. Where the settings want
one size alone, for work in large batches, that is no larger than one request: what is put together
of several would be padded whenever they do not come together.
"""

from __future__ import annotations

import os

from penstock.config import Model
from penstock.devices.limit import SQUEEZED, SQUEEZES
from penstock.model.findings import Findings
from penstock.model.peak import Need, buffered_rows, cut, planned_rows
from penstock.spec import STRING, Signature
from penstock.transport.pieces import piece_rows


def beginning(findings: Findings, model: Model, inputs: Signature, limit: int) -> tuple[int, ...]:
    """What was found out, for a device with so much memory (0: that is not known)."""
    given = model.ladder or model.max_batch
    room = (planned_rows(model.name), 0 if given else buffered_rows(inputs))
    most = min(filter(None, room), default=0)
    known = findings.sizes(model.ladder)
    sizes = cut(known, Need.told(findings.memory), limit, most)
    if findings.mode.endswith("xla") and sizes[-1] not in known:
        sizes = _compiled_before(sizes)
    if model.warm != "all":
        sizes = (sizes[-1] if given else _alone(sizes, model.warm, inputs),)
    return sizes


def may_begin_anew() -> bool:
    """Whether a worker that runs out of a card's memory as it loads is followed by another one."""
    return "PENSTOCK_WORKER" in os.environ and int(os.environ.get(SQUEEZED) or 0) < SQUEEZES


def _compiled_before(sizes: tuple[int, ...]) -> tuple[int, ...]:
    *smaller, largest = sizes
    return tuple(smaller) if smaller and 2 * smaller[-1] > largest else sizes


def _alone(sizes: tuple[int, ...], warm: str, inputs: Signature) -> int:
    """The one that is used alone: it fits into a request, and has no more rows than were said."""
    most = sizes[-1]
    if warm.isdecimal():
        most = max((size for size in sizes if size <= int(warm)), default=int(warm))
    if any(None in tensor.shape or tensor.dtype == STRING for tensor in inputs):
        return most
    return piece_rows(most, sum(tensor.row_bytes for tensor in inputs))
