"""A command in a terminal of its own: what it shows, and the keys that are pressed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time

# Makes the terminal the one that Ctrl-C reaches the process by.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)
CTRL_C = b"\x03"


class Terminal:
    """Runs a command until it ends; `shown` is all that it wrote, as it wrote it.

    With `stdout`, only stdin and stderr are the terminal.
    """

    def __init__(self, command, *, cwd, environment, size=(30, 100), stdout=None) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
        environment = {k: v for k, v in environment.items() if k not in ("COLUMNS", "LINES")}
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            cwd=cwd,
            env={**environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
        )
        os.close(slave)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str, limit: float = 30.0) -> None:
        deadline = time.monotonic() + limit
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.shown}"
            assert self._read(0.1), f"it ended without {text!r}: {self.shown}"

    def wait(self, limit: float = 30.0) -> int:
        """Its exit code."""
        deadline = time.monotonic() + limit
        while self._read(0.1):
            assert time.monotonic() < deadline, f"it did not end: {self.shown}"
        return self.process.wait(limit)

    def _read(self, limit: float) -> bool:
        """Whether more may come."""
        if not select.select([self._master], [], [], limit)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # nobody has the terminal any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._master)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
