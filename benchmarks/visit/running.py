"""One part as a process of its own: its output as it comes, its end by force if it must be.

A part that is late is interrupted (SIGINT), so that it tidies up and tells what it has; one that
does not end then is killed with all of its group. What it started in groups of their own ends by
itself: such a child reads the end of its input, or follows its owner.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from benchmarks.core.processes import ROOT
from benchmarks.visit.parts import Part

GRACE = 15.0  # seconds for a part that was interrupted
LATE = 30.0  # seconds by which a part that knows its limit ends before this ends it


def run(part: Part, limit: float, log: Path) -> tuple[str, int]:
    """What became of it (done, failed, cut off), and its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # With a handler of its own for SIGINT, what this process starts does not ignore that signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *part.argv(limit)],
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "140"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        pump = threading.Thread(target=_pump, args=(process.stdout, file), daemon=True)
        pump.start()
        late = False
        try:
            process.wait(limit + LATE)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
            pump.join(2.0)
            if not pump.is_alive():  # else something that it left behind holds its output
                process.stdout.close()
    if late:
        return "cut off", process.returncode
    return ("done" if process.returncode == 0 else "failed"), process.returncode


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        _signal(process, signal.SIGINT)
        deadline = time.monotonic() + GRACE
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _pump(source: IO[str], file: IO[str]) -> None:
    with contextlib.suppress(ValueError):  # the file is closed, the output is not
        for line in source:
            file.write(line)
            file.flush()
            sys.stdout.write(line)
            sys.stdout.flush()
