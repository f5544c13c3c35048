"""A process that the demo starts, and the talk with it: one line of JSON each way.

    demo: Child("…asker", settings) ── settings, then lines over a socket pair ──▶ asker: Parent()

`Child` is the side of whoever starts it, `Parent` that of the process. What the process writes to
its output (TensorFlow writes a lot) goes to a file, and is told when it fails. It ends when it is
told to, when the talk ends, and, by the kernel, when its parent dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from penstock import launch
from penstock.errors import PenstockError, RemoteTraceback

_SET_DEATH_SIGNAL = 1
_TICK = 0.2
_END_LIMIT = 1.0


class Child:
    """One process: `python -m module`. `log` is where its output goes. `end_all` ends it."""

    def __init__(self, module: str, settings: dict[str, Any], log: Path) -> None:
        self.log = log
        self.socket, theirs = socket.socketpair()
        try:
            with theirs, log.open("wb") as file:
                talk = {"talk": theirs.fileno()}
                self.process = launch.start(
                    module, json.dumps(settings), talk, detached=False, log=file
                )
        except BaseException:
            self.socket.close()
            raise
        self._heard = b""

    def say(self, value: Any) -> None:
        """Tell it something; when it has gone, its silence is the news."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(value).encode() + b"\n")

    def lines(self) -> list[Any]:
        """What it has said since the last time. Raises why when it has gone."""
        chunk = b""
        with contextlib.suppress(ConnectionError):
            chunk = self.socket.recv(1 << 20)
        if not chunk:
            self._tell_end()
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def _tell_end(self) -> NoReturn:
        self.process.wait()
        text = self.log.read_text(errors="replace").strip()
        last = f"; its last words: {text.splitlines()[-1]}" if text else ""
        how = launch.exit_text(self.process.returncode)
        raise PenstockError(f"a process of the demo failed: {how}{last}") from (
            RemoteTraceback(text) if text else None
        )


def hear(
    children: Sequence[Child], limit: float, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Any]]:
    """What the children say, each with its number, until the caller has heard enough.

    Raises when one of them has gone, or `limit` seconds are over.
    """
    until = time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        for number, child in enumerate(children):
            selector.register(child.socket, selectors.EVENT_READ, number)
        while True:
            if time.monotonic() >= until:
                raise PenstockError(f"a process of the demo was silent for {limit:g} s")
            for key, _ in selector.select(_TICK):
                for value in children[key.data].lines():
                    yield key.data, value
            meanwhile()


def end_all(children: Sequence[Child]) -> None:
    """End them all: the end of the talk says so; who does not listen is killed."""
    for child in children:
        child.socket.close()
    until = time.monotonic() + _END_LIMIT
    for child in children:
        try:
            child.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


class Parent:
    """In the started process: whoever started it, and with which `settings`."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        text, descriptors = launch.read_settings(sys.argv)
        self.settings: dict[str, Any] = json.loads(text)
        talk = socket.socket(fileno=descriptors["talk"])
        with contextlib.suppress(BlockingIOError):
            if not talk.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                leave()  # it had gone before the kernel was told
        self._file = talk.makefile("rw", encoding="utf-8")

    def say(self, value: Any) -> None:
        """Tell it something; without a parent there is nothing left to do."""
        try:
            self._file.write(json.dumps(value) + "\n")
            self._file.flush()
        except OSError:
            leave()

    def hear(self) -> Any:
        """What it says next; does not return when it has nothing more to say."""
        line = self._file.readline()
        if not line:
            leave()
        return json.loads(line)


def leave() -> NoReturn:
    """End this process at once: taking TensorFlow apart takes seconds, and nothing is kept."""
    os._exit(0)
