"""Batches on their way: asked for again when the engine is full, ended by what is no row's."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from penstock.errors import DeviceMemoryError, Overloaded, PenstockError, RemoteTraceback
from penstock.offline import window
from penstock.offline.feed import Feed
from penstock.offline.stages import Stages
from penstock.offline.window import Batch, Shaping, Window


class Client:
    """Answers with what is next: an error that it raises, one in its answer, or the rows."""

    def __init__(self, *answers: tuple[str, PenstockError]) -> None:
        self._answers = list(answers)
        self.asked = 0

    def submit(self, rows: Any, model: str) -> Future[Any]:
        self.asked += 1
        future: Future[Any] = Future()
        how, error = self._answers.pop(0) if self._answers else ("", PenstockError())
        if how == "raised":
            raise error
        if how:
            future.set_exception(error)
        else:
            future.set_result(rows)
        return future


def gathered(client: Client) -> Any:
    feed = Feed((("", ""),), True)
    found = Window(client, "m", feed, Shaping(), Stages(), size=2)  # it has all that is used
    rows = np.arange(4)
    found.send(Batch(0, True, {"": rows}, rows, rows, np.ones(4, bool), [], {}))
    return found.gather()[1]


def test_an_engine_that_is_full_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_PAUSE", 0.0)
    full = Overloaded("full")
    client = Client(("raised", full), ("answered", full), ("raised", full))
    assert gathered(client).columns[""].tolist() == [0, 1, 2, 3]
    assert client.asked == 4


def test_what_is_no_rows_fault_keeps_its_cause() -> None:
    error = DeviceMemoryError("too little")
    error.__cause__ = RemoteTraceback("in the worker")
    with pytest.raises(DeviceMemoryError) as caught:
        gathered(Client(("answered", error)))
    assert caught.value is error
    assert isinstance(error.__cause__, RemoteTraceback)
