"""What is the same for all calls of one kind (model, names, dtypes, row shapes), worked out once.

A call with one plain array finds its kind by dtype and shape alone, without looking at it further:
that is the path that must be short.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.client.padding import Trim, pad_inputs
from penstock.errors import InputError
from penstock.spec import STRING, ModelSpec, Pad, Signature
from penstock.transport.arena import size_class
from penstock.transport.pieces import PIECE_BYTES, piece_rows
from penstock.transport.tensors import Array, align, collect, plan_of

_MOST_KINDS = 4096
_AHEAD = 6  # batches of a large call that are on their way at a time, for each worker
_FIRST_ROOM = 64


class ModelInfo:
    """A model as the engine described it."""

    def __init__(
        self, number: int, name: str, max_batch: int, batched: bool, request_rows: int = 0
    ) -> None:
        """`request_rows`: those that every worker can run at once, where some have less memory."""
        self.number = number
        self.name = name
        self.max_batch = max_batch
        self.request_rows = min(request_rows or max_batch, max_batch)
        self.batched = batched
        self.spec = ModelSpec()
        self.pads: tuple[Pad, ...] = ()


class Kind:
    """How calls of one kind are split, laid out in slots and sent."""

    __slots__ = (
        "_largest_piece",
        "_largest_slot",
        "_sizes",
        "model",
        "piece_rows",
        "plan",
        "room",
        "row_bytes",
        "signature",
        "strings",
        "window",
    )

    def __init__(self, info: ModelInfo, signature: Signature, memory: int) -> None:
        self.model = info.number
        self._largest_slot = memory // 2
        self.signature = signature
        self.plan = plan_of(signature)
        self.strings = any(tensor.dtype == STRING for tensor in signature)
        self.row_bytes = self.plan.row_bytes
        self.room = _FIRST_ROOM
        self._sizes: dict[int, tuple[int, int]] = {}
        self._largest_piece = 0  # bytes; 0: a call is one piece, however large
        if info.batched:
            self._largest_piece = min(PIECE_BYTES, memory // 4)
            self.piece_rows = piece_rows(
                info.max_batch,
                self.row_bytes,
                request_rows=info.request_rows,
                most=self._largest_piece,
            )
            self.window = _AHEAD * (info.max_batch // self.piece_rows)
        else:
            self.piece_rows = 1 << 31
            self.window = 1

    def piece_end(self, arrays: list[Array], start: int, rows: int) -> int:
        """Where a piece that begins with this row ends. Only texts and bytes must be looked at."""
        stop = min(start + self.piece_rows, rows)
        if self.strings and self._largest_piece:
            while stop - start > 1 and self.plan.size(arrays, start, stop) > self._largest_piece:
                stop = start + (stop - start) // 2
        return stop

    def slot_sizes(self, arrays: list[Array], start: int, stop: int) -> tuple[int, int]:
        """Bytes of these rows, and of the slot that holds them and their answer."""
        rows = stop - start
        sizes = self._sizes.get(rows)
        if sizes is None:
            input_bytes = self.plan.size(arrays, start, stop)
            room = min(align(self.room * rows), max(0, self._largest_slot - align(input_bytes)))
            sizes = (input_bytes, size_class(align(input_bytes) + room))
            if not self.strings and len(self._sizes) < 1024:
                self._sizes[rows] = sizes
        return sizes

    def learn_room(self, size: int, rows: int) -> None:
        """An answer did not fit: leave more room in the slots to come."""
        needed = -(-size // max(rows, 1))
        if needed > self.room:
            self.room = needed
            self._sizes = {}


class Kinds:
    """The kinds of calls that a session has seen."""

    def __init__(self) -> None:
        self.models: dict[int, ModelInfo] = {}
        self.memory = 1 << 30  # what the engine lets a client hold
        self._kinds: dict[tuple[int, Signature], Kind] = {}
        self._quick: dict[tuple[str | None, np.dtype[Any], tuple[int, ...]], Kind] = {}

    def sort(self, x: Any, model: str | None) -> tuple[Kind, list[Array], int, tuple[Trim, ...]]:
        """A call's kind, arrays, number of rows, and what to cut from its outputs.

        Raises `InputError`.
        """
        if type(x) is np.ndarray and x.ndim:
            quick = (model, x.dtype, x.shape[1:])
            kind = self._quick.get(quick)
            if kind is not None:
                return kind, [x], len(x), ()
            kind, arrays, rows, trims = self._sort(x, model)
            if not kind.strings and not self.model(model).pads:
                self._quick[quick] = kind
            return kind, arrays, rows, trims
        return self._sort(x, model)

    def _sort(self, x: Any, model: str | None) -> tuple[Kind, list[Array], int, tuple[Trim, ...]]:
        info = self.model(model)
        trims: tuple[Trim, ...] = ()
        if info.pads:
            x, trims = pad_inputs(x, info.pads, info.spec)
        signature, arrays, rows = collect(x, info.spec)
        key = (info.number, signature)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
                self._quick.clear()
            kind = self._kinds[key] = Kind(info, signature, self.memory)
        return kind, arrays, rows, trims

    def model(self, name: str | None) -> ModelInfo:
        """The model of that name, or the only one."""
        models = self.models.values()
        if name is None and len(models) == 1:
            return next(iter(models))
        for info in models:
            if info.name == name:
                return info
        known = ", ".join(repr(info.name) for info in models)
        if name is None:
            raise InputError(f"the engine has several models: pass model=, one of {known}")
        raise InputError(f"the engine has no model {name!r}; it has {known}")
