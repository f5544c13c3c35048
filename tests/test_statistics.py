"""The snapshot that an engine sends, as the client's types say it."""

from __future__ import annotations

import json

from penstock.config import EngineConfig, Model
from penstock.engine.core import Core
from penstock.engine.report import report
from penstock.scheduling.decisions import Closed
from penstock.statistics import statistics_of
from tests.engine.recording import Recording


def test_what_the_engine_reports_is_what_the_client_reads() -> None:
    config = EngineConfig(name="n", workers=2)
    core = Core((Model("m:f"), Model("m:g", batched=False)), config, Recording(), 77)
    core.start(1_000)
    core.connected(5, 4242)
    core.counters[0].sent(4, Closed.FULL)
    core.counters[1].sent(4, Closed.SINGLE)
    statistics = statistics_of(json.dumps(report(core, 2_000_001_000, 1_000)).encode())
    assert (statistics.name, statistics.pid, statistics.state) == ("n", 77, "loading")
    assert statistics.uptime == 2.0
    assert not statistics.healthy
    assert [model.name for model in statistics.models] == ["f", "g"]
    assert [worker.index for worker in statistics.workers] == [0, 1]
    assert statistics.workers[0].state == "starting"
    assert [(client.number, client.pid) for client in statistics.clients] == [(5, 4242)]
    assert statistics.batches.sizes == {4: 2}
    assert statistics.batches.count == 2
    assert [model.closed for model in statistics.models] == [{"full": 1}, {"single": 1}]
    assert [model.sizes for model in statistics.models] == [{4: 1}, {4: 1}]
