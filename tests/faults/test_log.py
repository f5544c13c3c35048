"""An engine's log goes where its owner's standard error goes, whether anybody reads that or not."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from penstock import connect
from penstock.transport import rendezvous
from tests.faults.company import gone
from tests.faults.files import source
from tests.faults.models import Verb, row
from tests.faults.waiting import eventually


@pytest.fixture
def stderr():
    """A pipe to which not a byte more can be written; both ends, and how much is in it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    yield reader, writer, size
    os.close(reader)
    os.close(writer)


def _talk_nonsense(address, times):
    for _ in range(times):
        with rendezvous.dial(address) as sock, contextlib.suppress(OSError):
            sock.settimeout(5)
            sock.send(b"\xee nonsense")
            while sock.recv(1 << 16):
                pass


def test_nobody_waits_for_it(peer, run_folder, stderr):
    reader, writer, size = stderr
    owner = peer("own", run_folder, source("act"), 1, stderr=writer)
    address, _, workers = owner.says()
    with connect(address) as client:
        _talk_nonsense(client.address, 300)
        for number in range(5):
            answer = client.predict(row(Verb.LOG, number, 1)[None], deadline=10)
            assert answer[0].tolist() == [8, workers[0]], "the worker did not wait either"
        assert len(client.statistics().clients) == 2
    while size:
        size -= len(os.read(reader, size))
    text = ""

    def read():
        nonlocal text
        text += os.read(reader, 1 << 16).decode()
        return "row 4" in text and "more like this" in text

    eventually(read, 15, "what was left out is told")
    assert text.count("is disconnected: no record has the type 238") < 15
    assert "290 more like this: client" in text


def test_it_does_not_outlive_its_owner(peer, run_folder, stderr):
    owner = peer("own", run_folder, source("act"), 1, stderr=stderr[1])
    address, engine, workers = owner.says()
    with connect(address) as client:
        _talk_nonsense(client.address, 3)
        client.predict(row(Verb.LOG, 0, 1)[None])
    owner.kill()
    gone(engine, *workers, seconds=5)


def test_it_says_who_was_thrown_out_and_why(peer, run_folder, folder):
    with (folder / "log").open("wb") as log:
        owner = peer("own", run_folder, source("act"), 1, stderr=log)
    address, *_ = owner.says()
    _talk_nonsense(Path(address), 1)
    told = re.compile(r"client \d+ is disconnected: no record has the type 238\n")
    eventually(lambda: told.search((folder / "log").read_text()), what="it is written")
