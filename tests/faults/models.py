"""A model that does what its rows tell it to, for tests that need it to misbehave on time.

A row of `act` is int64: (verb, argument, number, …). Its answer is (what `answer_to` says of the
number and the rest of the row, the worker's pid). Rows wait for each other through files in the
folder that `PENSTOCK_TEST_FOLDER` names: `Verb.WAIT` with argument 3 leaves `started-3-<pid>` and
goes on when `go-3` is there.

The classes below are for constructors: what can go wrong while a model is loaded.
"""

from __future__ import annotations

import atexit
import ctypes
import enum
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("PENSTOCK_TEST_FOLDER", "."))
FOREVER = 3600
not_callable = 3


class Verb(enum.IntEnum):
    """What a row lets the model do before it is answered."""

    ANSWER = 0
    WAIT = 1  # for the file go-<argument>
    RAISE = 2
    KILL = 3  # the worker, with the signal <argument>
    KILL_ONCE = 4  # likewise, but only the first time that <argument> is seen
    SLEEP = 5  # <argument> milliseconds
    LOOP = 6  # for ever, in Python
    HOLD_GIL = 7  # <argument> milliseconds inside C that does not let go of the interpreter
    SPAWN = 8  # a child; by <argument>: plain, in a session of its own, a daemon, one that ignores
    LEAK_DESCRIPTOR = 9
    LEAK_MEMORY = 10  # <argument> kilobytes
    EXIT = 12  # sys.exit
    STOP_SELF = 13
    LOG = 14


def row(verb: Verb, argument: int = 0, number: int = 0, extra: int = 0) -> np.ndarray:
    """One row for `act`, with `extra` more elements after the first three."""
    return np.array([verb, argument, number, *range(extra)], np.int64)


def rows(*several: np.ndarray) -> np.ndarray:
    """Rows as one array."""
    return np.stack(several)


def answer_to(x: np.ndarray) -> np.ndarray:
    """The right answers, without the pid."""
    return x[:, 2] * 7 + 1 + x[:, 3:].sum(axis=1)


def act(x: np.ndarray) -> np.ndarray:
    """Do what each row says, then answer all."""
    note("batches", f"{os.getpid()} {len(x)}")
    for verb, argument, *_ in x.tolist():
        _DEEDS[verb](argument)
    return np.stack([answer_to(x), np.full(len(x), os.getpid())], axis=1)


def note(name: str, text: str) -> None:
    """Append a line to a file of the test's."""
    with (FOLDER / name).open("a") as file:
        file.write(text + "\n")


def _wait(argument: int) -> None:
    (FOLDER / f"started-{argument}-{os.getpid()}").touch()
    while not (FOLDER / f"go-{argument}").exists():
        time.sleep(0.002)


def _raise(argument: int) -> None:
    raise ValueError(f"row {argument} is not to my taste")


def _kill(argument: int) -> None:
    os.kill(os.getpid(), argument or signal.SIGKILL)
    time.sleep(FOREVER)


def _kill_once(argument: int) -> None:
    try:
        (FOLDER / f"killed-{argument}").touch(exist_ok=False)
    except FileExistsError:
        return
    _kill(signal.SIGKILL)


def _loop(argument: int) -> None:
    (FOLDER / f"started-{argument}-{os.getpid()}").touch()
    while True:
        pass


def _hold_gil(argument: int) -> None:
    (FOLDER / f"started-{argument}-{os.getpid()}").touch()
    ctypes.PyDLL(None).usleep(argument * 1000)


_SPAWNED = ("plain", "session", "daemon", "stubborn")


def _spawn(argument: int) -> None:
    kind = _SPAWNED[argument]
    command = ["sleep", str(FOREVER)]
    if kind == "daemon":
        done = subprocess.Popen(["sh", "-c", f"setsid sleep {FOREVER} & setsid sleep {FOREVER} &"])
        done.wait()
    elif kind == "stubborn":
        script = "trap '' TERM HUP INT; while :; do sleep 1; done"
        _children.append(subprocess.Popen(["setsid", "sh", "-c", script]))
    else:
        _children.append(subprocess.Popen(command, start_new_session=kind == "session"))


_children: list[Any] = []
_leaked: list[Any] = []

_DEEDS = {
    Verb.ANSWER: lambda _: None,
    Verb.WAIT: _wait,
    Verb.RAISE: _raise,
    Verb.KILL: _kill,
    Verb.KILL_ONCE: _kill_once,
    Verb.SLEEP: lambda argument: time.sleep(argument / 1000),
    Verb.LOOP: _loop,
    Verb.HOLD_GIL: _hold_gil,
    Verb.SPAWN: _spawn,
    Verb.LEAK_DESCRIPTOR: lambda _: _leaked.append(os.open("/dev/null", os.O_RDONLY)),
    Verb.LEAK_MEMORY: lambda argument: _leaked.append(np.ones(argument << 10, np.uint8)),
    Verb.EXIT: lambda argument: sys.exit(argument),
    Verb.STOP_SELF: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    Verb.LOG: lambda argument: logging.getLogger("model").warning("row %d", argument),
}


def checksum(x: np.ndarray) -> np.ndarray:
    """The checksum of each row's bytes."""
    return np.array([zlib.crc32(np.ascontiguousarray(line).tobytes()) for line in x], np.uint32)


def echo(x: np.ndarray) -> np.ndarray:
    """The rows themselves."""
    return x


def inflate(x: np.ndarray) -> np.ndarray:
    """Answers of 4 KB a row: more than a slot has room for at first."""
    return np.repeat(x.reshape(len(x), -1)[:, :1].astype(np.int64), 512, axis=1)


def spell(x: np.ndarray) -> np.ndarray:
    """A text for each row, as long as the row says."""
    return np.array([b"x" * length for length in x.reshape(-1).tolist()], object)


def inflate_when_let_go(x: np.ndarray) -> np.ndarray:
    """The same, as soon as go-1 is there."""
    _wait(1)
    return inflate(x)


def inflate_even(x: np.ndarray) -> np.ndarray:
    """The same of even rows; of odd ones it raises, and says a lot, of each something else."""
    odd = x[x % 2 == 1]
    if len(odd):
        raise ValueError(f"{odd[0]} is odd: " + "node {{node model/block}} " * 400)
    return inflate(x)


def lengths(x: np.ndarray) -> np.ndarray:
    """The lengths of strings."""
    flat = [len(item) for item in x.reshape(-1)]
    return np.array(flat, np.int64).reshape(x.shape)


class ReusedBuffer:
    """Answers from one array that it uses again and again; raises on negative rows."""

    def __init__(self) -> None:
        self._out = np.empty((64, 1), np.int64)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Each row's number, doubled."""
        if (x < 0).any():
            raise ValueError("negative")
        out = self._out[: len(x)]
        out[:] = x * 2
        return out


class TwoNamesAlike:
    """Names two outputs alike once they are texts."""

    def __call__(self, x: np.ndarray) -> dict[Any, np.ndarray]:
        """Outputs that cannot be told apart."""
        return {1: x, "1": x}


# ── constructors ────────────────────────────────────────────────────────────────────────────────


class _Loaded:
    """Notes each attempt to load it, then answers like `act`."""

    def __init__(self) -> None:
        note("loads", str(os.getpid()))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return act(x)


class Raises(_Loaded):
    """Cannot be constructed."""

    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("the weights are missing")


class RaisesAtLength(_Loaded):
    """Cannot be constructed, and says so in more words than a message holds."""

    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("too long \0 " + "ü" * 200_000)


class Unprintable(_Loaded):
    """Raises an error that cannot even be shown."""

    def __init__(self) -> None:
        super().__init__()

        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text either")

        raise Silent


class Exits(_Loaded):
    """Ends the process politely while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        sys.exit("enough")


class ExitsHard(_Loaded):
    """Ends the process at once while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        os._exit(7)


class KillsItself(_Loaded):
    """Is killed while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        _kill(signal.SIGKILL)


class Crashes(_Loaded):
    """Crashes while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        _kill(signal.SIGSEGV)


class StopsItself(_Loaded):
    """Is stopped while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(FOREVER)


class NeverLoads(_Loaded):
    """Takes for ever to load."""

    def __init__(self) -> None:
        super().__init__()
        (FOLDER / f"started-0-{os.getpid()}").touch()
        time.sleep(FOREVER)


class NeverLoadsWithChildren(NeverLoads):
    """Likewise, and starts something before."""

    def __init__(self) -> None:
        for kind in range(len(_SPAWNED)):
            _spawn(kind)
        super().__init__()


class RaisesWithThread(_Loaded):
    """Cannot be constructed, and leaves a thread that would keep the process alive."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=time.sleep, args=(FOREVER,)).start()
        raise RuntimeError("the weights are missing")


class RaisesWithHook(_Loaded):
    """Cannot be constructed, and hangs when the interpreter ends."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(time.sleep, FOREVER)
        raise RuntimeError("the weights are missing")


class RaisesWithChildren(_Loaded):
    """Cannot be constructed, after it has started other processes."""

    def __init__(self) -> None:
        super().__init__()
        for kind in range(len(_SPAWNED)):
            _spawn(kind)
        raise RuntimeError("the weights are missing")


class RaisesInSecondWorker(_Loaded):
    """Can be constructed in the first worker only."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ["PENSTOCK_WORKER"] == "1":
            raise RuntimeError("only one of me, please")


class RaisesWhileBroken(_Loaded):
    """Cannot be constructed while the file `broken` is there."""

    def __init__(self) -> None:
        super().__init__()
        if (FOLDER / "broken").exists():
            raise RuntimeError("broken for now")


class RaisesSometimes(_Loaded):
    """Can be constructed the first time and every third time after."""

    def __init__(self) -> None:
        super().__init__()
        attempts = len((FOLDER / "loads").read_text().splitlines())
        if (attempts - 1) % 3:
            raise RuntimeError(f"not this time (attempt {attempts})")


class StartsThread(_Loaded):
    """Has a thread that would keep the process alive after `Stop`."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=time.sleep, args=(FOREVER,)).start()


class HidesMemory(_Loaded):
    """Holds a mapping of its own that looks like a segment's."""

    def __init__(self) -> None:
        super().__init__()
        descriptor = os.memfd_create("penstock")
        os.ftruncate(descriptor, 4096)
        self.kept = mmap.mmap(descriptor, 4096)


class UsesSubprocesses(_Loaded):
    """Runs other programs, as some preprocessing does, and wants their exit codes."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The exit codes of a child and of a child that lives for a while."""
        slow = subprocess.Popen(["sleep", "0.3"])
        quick = subprocess.run(["true"], check=False).returncode
        return np.full((len(x), 2), [quick, slow.wait()], np.int64)
