"""What a client can say of a model in its engine, and of a call. Loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from penstock.spec import ModelSpec


@dataclass(frozen=True)
class ServedModel:
    """A model as its engine describes it.

    `spec` is what it takes and answers, as far as it says. A batch has at most `max_batch` rows,
    fewer on a worker with less memory than others; where rows are not independent (`batched` is
    false), every request is a batch of its own. `request_rows` is how many rows go into one
    request, where rows were shown: a larger call is sent as several, which are batched anew.
    """

    name: str
    spec: ModelSpec
    max_batch: int
    batched: bool
    request_rows: int = 0


class CallOptions(TypedDict, total=False):
    """What a call may say beside its rows. See `Client.predict`."""

    model: str | None
    deadline: float | None
    priority: int
    caller: str


class StreamOptions(CallOptions, total=False):
    """What `Client.map` may be told beside its rows."""

    ordered: bool
    window: int | None
    return_errors: bool
