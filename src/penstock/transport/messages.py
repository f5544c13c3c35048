"""Every record that crosses a socket. `wire` makes bytes of them: no pickle, nothing executable.

    client ─▶ engine   Hello AddSegment* DropSegment Layout Submit Cancel Ask Stop
    engine ─▶ client   Welcome ModelCard CardTensors State OutputLayout Part* RowFailed
                       Done Failed Refused Cancelled Answer Rejected
    engine ─▶ worker   MapSegment* UnmapSegment RunLayout Run Stop
    worker ─▶ engine   ModelCard CardTensors Loaded LoadFailed OutputLayout ItemPart* ItemFailed Ran
                                                            (* with one descriptor)

A request is ended by exactly one of `Done`, `Failed`, `Refused` and `Cancelled`. Here a record says
what its fields mean; sizes are checked by whoever knows the limits (the engine), with Python's
integers, which do not overflow.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from penstock.spec import Signature

VERSION = 6
OPEN = 0xFFFF_FFFF_FFFF_FFFF  # a size that a model's spec leaves open


# ── client to engine ────────────────────────────────────────────────────────────────────────────


class Hello(NamedTuple):
    """The first message of a client: which protocol it speaks and what it is called."""

    version: int
    pid: int
    label: str


class AddSegment(NamedTuple):
    """A new segment of the client's; its descriptor travels with it."""

    segment: int
    size: int


class DropSegment(NamedTuple):
    """The client has no more use for this segment."""

    segment: int


class Layout(NamedTuple):
    """What the requests that name this layout carry: for which model, tensors of which kind."""

    layout: int
    model: int
    tensors: Signature


SUBMIT_ITEM = struct.Struct("<QIIQQQIhIqH")
LONGEST_SERIES = 256  # requests
HIGHEST_REQUEST = 0xFFFF_FFFF_FFFF_FFFF


class SubmitItem(NamedTuple):
    """One request: where its slot lies, how many rows, until when, how urgent.

    The slot is `length` bytes at `offset` of `segment`: first `input_bytes` of input, the rest is
    room for the answer. `deadline` is nanoseconds of CLOCK_MONOTONIC, 0 for none. `caller` tells
    those apart for whom one client speaks: they take turns like clients of their own.

    Several `requests` are a *series*: of one row each, with numbers and slots that follow each
    other, and the rest in common.
    """

    request: int
    segment: int
    layout: int
    offset: int
    length: int
    input_bytes: int
    rows: int
    priority: int
    caller: int
    deadline: int
    requests: int = 1


class Submit(NamedTuple):
    """Requests; from here on their slots belong to the engine."""

    items: list[tuple[Any, ...]]


class Cancel(NamedTuple):
    """The caller has lost interest in these requests."""

    items: list[tuple[int]]


class Ask(NamedTuple):
    """Please tell one of the ASK_ things; the answer carries the same token."""

    token: int
    what: int


ASK_STATISTICS, ASK_TRACE_START, ASK_TRACE = range(3)


class Stop(NamedTuple):
    """Work off what is queued, for at most this long, then end."""

    drain_seconds: float


# ── engine to client ────────────────────────────────────────────────────────────────────────────


class Welcome(NamedTuple):
    """The client is in: its number, what it may hold and have outstanding, how many may wait."""

    version: int
    engine_pid: int
    client: int
    memory: int
    requests: int
    workers: int
    queue_rows: int


class ModelCard(NamedTuple):
    """A loaded model: its number, name and limits. What it declares follows in `CardTensors`.

    A batch has at most `max_batch` rows, or fewer where a worker has less memory: one request of at
    most `request_rows` fits them all.
    """

    model: int
    max_batch: int
    request_rows: int
    batched: int
    name: str


class CardTensors(NamedTuple):
    """The inputs (side 0) or outputs (side 1) that a model declares; follows its card."""

    model: int
    side: int
    tensors: Signature


class CardPads(NamedTuple):
    """How a model's inputs are padded before they are sent (JSON); follows its card."""

    model: int
    data: bytes


class State(NamedTuple):
    """Whether the engine can answer: one of the STATE_ numbers, and why not."""

    state: int
    kind: int
    text: str


STATE_LOADING, STATE_READY, STATE_FAILED, STATE_CLOSING = range(4)


class OutputLayout(NamedTuple):
    """What answers that name this layout carry."""

    layout: int
    tensors: Signature


class Part(NamedTuple):
    """Rows of a request whose answer did not go the usual way (all rows, in the slot).

    `place` is 0 for the slot, 1 for a segment of `size` bytes whose descriptor travels along.
    """

    request: int
    start: int
    rows: int
    layout: int
    place: int
    size: int


class RowFailed(NamedTuple):
    """Rows of a request that end with an error, before its `Done`.

    The text of an error is its message, then a nul character and the remote traceback, if any.
    """

    request: int
    start: int
    rows: int
    kind: int
    text: str


DONE_ITEM = struct.Struct("<QI")


class Done(NamedTuple):
    """Requests with answers: (request, output layout); layout 0: see the parts sent before."""

    items: list[tuple[int, int]]


class Failed(NamedTuple):
    """The end of a request that was run without an answer."""

    request: int
    kind: int
    text: str


class Refused(NamedTuple):
    """The end of a request that was not run."""

    request: int
    kind: int
    text: str


class Cancelled(NamedTuple):
    """The end of requests that were cancelled."""

    items: list[tuple[int]]


class Answer(NamedTuple):
    """A piece of the statistics that were asked for (JSON)."""

    token: int
    last: int
    data: bytes


class Rejected(NamedTuple):
    """The engine's last word to a client that broke the protocol or is not allowed in."""

    text: str


# ── engine to worker ────────────────────────────────────────────────────────────────────────────


class MapSegment(NamedTuple):
    """A client's segment to map; its descriptor travels with it."""

    client: int
    segment: int
    size: int


class UnmapSegment(NamedTuple):
    """No batch uses this segment any more."""

    client: int
    segment: int


class RunLayout(NamedTuple):
    """What the rows of batches that name this layout are: model and tensors."""

    layout: int
    model: int
    tensors: Signature


RUN_ITEM = struct.Struct("<IIQQQIIIB")


class RunItem(NamedTuple):
    """Rows `start` to `start + rows` of the `total` in a slot.

    Of a `series`, each row has a slot of its own, of `length` bytes, the first one at `offset`.
    """

    client: int
    segment: int
    offset: int
    length: int
    input_bytes: int
    total: int
    start: int
    rows: int
    series: int = 0


class Run(NamedTuple):
    """A batch to run, whole when `last` is set."""

    batch: int
    layout: int
    last: int
    items: list[tuple[Any, ...]]


# ── worker to engine ────────────────────────────────────────────────────────────────────────────


class Loaded(NamedTuple):
    """Every model is loaded and warm; the cards were sent before.

    `hands` is how many batches the worker has in its stages at a time.
    """

    pid: int
    hands: int = 1


class Warm(NamedTuple):
    """Nothing is left to warm up: the worker has what it needs of its device."""

    pid: int


class LoadFailed(NamedTuple):
    """A model could not be loaded."""

    kind: int
    text: str


class ItemPart(NamedTuple):
    """As `Part`, for an item of a batch."""

    batch: int
    item: int
    start: int
    rows: int
    layout: int
    place: int
    size: int


class ItemFailed(NamedTuple):
    """As `RowFailed`, for rows of an item of a batch."""

    batch: int
    item: int
    start: int
    rows: int
    kind: int
    text: str


class Ran(NamedTuple):
    """A batch is done. Layout 0: the parts and failures sent before say what became of each row."""

    batch: int
    layout: int
    size: int  # the rows that the model ran on, padding among them
    gather_ns: int
    run_ns: int
    scatter_ns: int


class ModelFacts(NamedTuple):
    """What a worker has found out about a model (JSON): how it is compiled, how long sizes take.

    Sent before `Loaded`, and again when more is known.
    """

    model: int
    data: bytes
