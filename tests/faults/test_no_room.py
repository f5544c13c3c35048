"""A worker without room for rows or their answers: those fail with the reason, and it goes on."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigError, Overloaded
from tests.faults.company import worker_pids
from tests.faults.files import let_go, source, started
from tests.faults.models import Verb, checksum, row

_MEGABYTE = 1 << 20


@contextlib.contextmanager
def limited(pid, which, most):
    """Meanwhile this process may have no more than that."""
    before = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, which, before)


def _memory(pid):
    """How many bytes of addresses a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def test_answers_larger_than_a_file_may_be(start):
    """Of three that are run together, one has a long answer."""
    engine = start({"act": source("act"), "spell": source("spell")}, workers=1)
    (worker,) = worker_pids(engine)
    lengths = np.array([[3], [5 * _MEGABYTE], [7]])
    with limited(worker, resource.RLIMIT_FSIZE, _MEGABYTE):
        running = engine.submit(row(Verb.WAIT, 1)[None], model="act")
        started(1)
        first, long, last = [engine.submit(length[None], model="spell") for length in lengths]
        let_go(1)
        running.result(10)
        assert first.result(10).tolist() == [b"xxx"]
        assert last.result(10).tolist() == [b"xxxxxxx"]
        with pytest.raises(ConfigError, match=r"answer of 52\d+ bytes.*ulimit -f"):
            long.result(10)
    (answer,) = engine.predict(lengths[1:2], model="spell").tolist()
    assert len(answer) == 5 * _MEGABYTE
    assert worker_pids(engine) == [worker]
    assert engine.statistics().deaths == 0


def test_answers_of_one_size_larger_than_a_file_may_be(start):
    """Arrays go another way than texts."""
    engine = start("inflate", workers=1)
    (worker,) = worker_pids(engine)
    with (
        limited(worker, resource.RLIMIT_FSIZE, 4096),
        pytest.raises(ConfigError, match="ulimit -f"),
    ):
        engine.predict(np.ones((3, 2)))
    assert (engine.predict(np.ones((3, 2))) == 1).all()
    assert worker_pids(engine) == [worker]
    assert engine.statistics().deaths == 0


def test_too_little_memory_for_a_batch_and_then_for_a_row(start):
    """What fits in parts is run in parts. Each kind of rows needs memory of its own."""
    engine = start("checksum", workers=1)
    (worker,) = worker_pids(engine)
    x = np.random.default_rng(1).integers(0, 255, (32, _MEGABYTE), np.uint8)
    right = checksum(x)
    assert (engine.predict(x) == right).all()
    with limited(worker, resource.RLIMIT_AS, _memory(worker) + 20 * _MEGABYTE):
        assert (engine.predict(x.view(np.int8)) == right).all()
    one = x.reshape(1, -1)
    with (
        limited(worker, resource.RLIMIT_AS, _memory(worker) + _MEGABYTE),
        pytest.raises(Overloaded, match="no room for a batch of 1 rows"),
    ):
        engine.predict(one)
    assert (engine.predict(one) == checksum(one)).all()
    assert worker_pids(engine) == [worker]
    assert engine.statistics().deaths == 0
