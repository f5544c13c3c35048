"""What a client can say of a model in its engine. Loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass

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
