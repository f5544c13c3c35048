"""Warming up beside a loop that serves: what is told when, and how it ends."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np

from penstock.model.function import Function
from penstock.spec import ModelSpec
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.channel import Channel, pair
from penstock.worker.loop import Worker
from penstock.worker.warmup import Ready, WarmUp
from tests.conditions import descriptors, until
from tests.worker.slots import ClientMemory


class Slow(Function):
    """A model whose warming up ends when the test says so."""

    def __init__(self, raises: bool = False) -> None:
        super().__init__(lambda x: x * 2, ModelSpec(), 8, True, "test")
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.warm = False
        self.raises = raises

    def warm_up(self) -> bool:
        self.begun.set()
        assert self.go_on.wait(20)
        if self.raises:
            raise RuntimeError("no more memory")
        self.warm = True
        return True

    def padded(self, rows: int) -> int:
        return rows if self.warm else 8

    def facts(self) -> dict[str, Any]:
        return {"mode": "slow", "ladder": [1, 8] if self.warm else [8]}


def test_the_loop_serves_meanwhile_and_tells_when_it_is_warm() -> None:
    ours, theirs = pair()
    channel = Channel(ours)
    models = [Slow(), Slow()]
    worker = Worker(Channel(theirs), [Ready(model, 1.5) for model in models])
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(worker.run()), daemon=True)
    thread.start()
    memory = ClientMemory()
    signature, item = memory.write(np.ones((3, 2), np.float32))
    channel.send(wire.encode(m.MapSegment(1, 1, memory.size)), [memory.descriptor])
    channel.send(wire.encode(m.RunLayout(1, 0, signature)))
    run = wire.encode_run(7, 1, [m.RUN_ITEM.pack(*item)])[0]

    def told() -> Any:
        return wire.decode(until(channel.receive)[0])

    channel.send(run)
    assert isinstance(told(), m.OutputLayout)
    assert told().size == 8
    models[0].go_on.set()
    facts = told()
    assert facts.model == 0
    assert json.loads(facts.data) == {"mode": "slow", "ladder": [1, 8], "seconds": 1.5}
    channel.send(run)
    assert told().size == 3
    models[1].go_on.set()
    assert told().model == 1
    channel.send(wire.encode(m.Stop(0.0)))
    thread.join(20)
    assert ended == [True]
    channel.close()
    theirs.close()
    memory.close()


def test_an_end_while_a_model_is_being_warmed_up() -> None:
    before = descriptors()
    model = Slow()
    warm_up = WarmUp([Ready(model), Ready(Slow())])
    assert model.begun.wait(20)
    assert not warm_up.close(0.01)
    model.go_on.set()
    warm_up._thread.join(20)
    assert not warm_up._thread.is_alive()
    assert descriptors() == before


def test_a_model_that_cannot_be_warmed_up_does_not_stop_the_others() -> None:
    bad, good = Slow(raises=True), Slow()
    for model in (bad, good):
        model.go_on.set()
    warm_up = WarmUp([Ready(bad), Ready(good)])
    warm_up._thread.join(20)
    facts, warm = map(wire.decode, warm_up.news())
    assert facts.model == 1
    assert isinstance(warm, m.Warm)
    assert warm_up.close(1.0)


def test_plain_functions_have_nothing_to_tell() -> None:
    plain = Function(lambda x: x, ModelSpec(), 8, False, "test")
    record = wire.decode(Ready(plain, 0.25).facts(3))
    assert record.model == 3
    facts = json.loads(record.data)
    assert facts["mode"] == "python"
    assert facts["ladder"] == []
    assert "batched=False" in facts["unbatched"]
    assert facts["seconds"] == 0.25
    warm_up = WarmUp([Ready(plain)])
    assert warm_up.close(20.0)
