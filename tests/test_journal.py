"""Lines are written by somebody who may wait; whoever logs them does not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from penstock import journal
from tests.conditions import until

_LINE = "nothing but a line, number %d"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe, both ends."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def _fill(writer: int) -> int:
    """Write until nothing more fits; returns how many bytes that were."""
    os.set_blocking(writer, False)
    written = 0
    try:
        while True:
            written += os.write(writer, b"." * 4096)
    except BlockingIOError:
        return written
    finally:
        os.set_blocking(writer, True)


def _logger(descriptor: int) -> logging.Logger:
    logger = logging.Logger("of a test")
    logger.addHandler(journal.Journal(descriptor))
    return logger


def _read(reader: int, end: bytes) -> bytes:
    text = b""
    while not text.endswith(end):
        text += os.read(reader, 1 << 16)
    return text


@pytest.mark.parametrize(
    ("chosen", "level"), [("info", "INFO"), ("", "WARNING"), ("chatty", "WARNING")]
)
def test_what_is_logged(monkeypatch: pytest.MonkeyPatch, chosen: str, level: str) -> None:
    monkeypatch.setenv("PENSTOCK_LOG", chosen)
    assert journal.log_level() == level


def test_lines_arrive_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    logger = _logger(writer)
    for number in range(1000):
        logger.warning(_LINE, number)
    lines = _read(reader, b" 999\n").decode().splitlines()
    assert lines == [_LINE % number for number in range(1000)]


@pytest.mark.parametrize("blocking", [True, False])
def test_what_cannot_be_written_is_dropped_and_counted(
    pipe: tuple[int, int], blocking: bool
) -> None:
    """Also where the owner does not want to wait for its own standard error."""
    reader, writer = pipe
    full = _fill(writer)
    os.set_blocking(writer, blocking)
    logger = _logger(writer)
    began = time.thread_time()
    for number in range(20_000):
        logger.warning(_LINE, number)
    assert time.thread_time() - began < 10, "it did not wait, and kept little"
    assert len(os.read(reader, full)) == full
    lines = _read(reader, b"in time\n").decode().splitlines()
    assert lines[:-1] == [_LINE % number for number in range(len(lines) - 1)]
    assert lines[-1].startswith(f"{20_000 - (len(lines) - 1)} lines of this log were dropped")
    assert 1000 < len(lines) < 20_000
    logger.warning("and so on")
    assert _read(reader, b"so on\n") == b"and so on\n"


def test_nobody_there_to_read() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    logger = _logger(writer)
    (handler,) = logger.handlers
    assert isinstance(handler, journal.Journal)
    logger.warning("to nobody")
    until(lambda: not handler._waiting)
    os.close(writer)


def test_a_wrong_call_is_logged_as_far_as_it_goes(pipe: tuple[int, int]) -> None:
    _logger(pipe[1]).warning("%d of %d", "one")
    text = os.read(pipe[0], 4096)
    assert b"'%d of %d'" in text
    assert b"one" in text
    assert text.count(b"\n") == 1


_ENDS = """
import logging, os, sys
from penstock import journal

journal.begin("test")
{}
"""


def _run(code: str, stderr: int) -> int:
    command = [sys.executable, "-c", _ENDS.format(code)]
    return subprocess.run(command, stderr=stderr, timeout=20, check=False).returncode


@pytest.mark.parametrize(
    ("code", "status"),
    [("logging.warning('the last one')", 0), ("raise RuntimeError('the last one')", 1)],
)
@pytest.mark.parametrize("full", [False, True])
def test_a_process_ends_with_its_last_words_or_without(
    pipe: tuple[int, int], code: str, status: int, full: bool
) -> None:
    reader, writer = pipe
    if full:
        _fill(writer)
    assert _run(code, writer) == status
    if not full:
        text = os.read(reader, 1 << 16).decode()
        assert "the last one" in text
        assert ("Traceback" in text) == bool(status)


def test_a_forked_child_writes_its_own_lines(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    code = """
logging.warning('before')
child = os.fork()
if not child:
    logging.warning('of the child')
    os._exit(0)
os.waitpid(child, 0)
"""
    assert _run(code, writer) == 0
    text = os.read(reader, 1 << 16).decode()
    assert text.count("before") == text.count("of the child") == 1
