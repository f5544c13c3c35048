"""What the engine knows of one client: its segments, layouts and requests, and what it is owed."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from penstock.engine.failures import Texts
from penstock.engine.requests import Request
from penstock.engine.segments import Segment
from penstock.scheduling.lanes import Lane
from penstock.spec import STRING, Signature
from penstock.transport.layouts import LayoutNumbers


class InputLayout(NamedTuple):
    """What a client said that its requests carry, and where they queue.

    `refusal` is why the model does not take it ("" when it does). `row_bytes` has the tensors of
    fixed size; of strings only how many a row has is known from the type.
    """

    lane: Lane | None
    row_bytes: tuple[int, ...]
    strings: tuple[int, ...]
    refusal: str

    def least_bytes(self, rows: int) -> int:
        """The least bytes of input that so many rows can have."""
        total = 0
        for size in self.row_bytes:
            total += -(-rows * size // 64) * 64
        for elements in self.strings:
            total += 8 * (rows * elements + 1)
        return total


class ClientState:
    """One connected client. `gone` when its connection ended; requests in flight outlive that.

    What it is still to be told is `delivery`'s: numbers of requests that ended in this round
    (`done`, all with `done_layout`), records in order (`owed`), and how many requests end with
    those (`untold`). It is `behind` while it does not read. `apart` are descriptors kept for it.
    """

    __slots__ = (
        "answered",
        "apart",
        "behind",
        "bytes_held",
        "done",
        "done_layout",
        "gone",
        "greeted",
        "label",
        "last_layout",
        "layouts",
        "number",
        "output_layouts",
        "owed",
        "pid",
        "requests",
        "rows_done",
        "rows_open",
        "segments",
        "texts",
        "untold",
    )

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.label = ""
        self.greeted = False
        self.gone = False
        self.bytes_held = 0
        self.segments: dict[int, Segment] = {}
        self.layouts: dict[int, InputLayout] = {}
        self.requests: dict[int, Request] = {}
        self.output_layouts: LayoutNumbers[Signature] = LayoutNumbers()
        self.last_layout: tuple[int, Signature] = (0, ())
        self.done: list[int] = []
        self.done_layout: Signature | None = None
        self.owed: deque[Any] = deque()
        self.untold = 0
        self.behind = False
        self.texts: Texts | None = None
        self.apart = 0
        self.answered = 0
        self.rows_done = 0
        self.rows_open = 0  # of requests that were queued and have not ended


def input_layout(signature: Signature, lane: Lane | None, refusal: str) -> InputLayout:
    """A layout from what the client said of its tensors."""
    sizes = tuple(tensor.row_bytes for tensor in signature if tensor.dtype != STRING)
    strings = tuple(tensor.elements for tensor in signature if tensor.dtype == STRING)
    return InputLayout(lane, sizes, strings, refusal)
