"""Who may write what: files that are locked, with the number of the process that has them in them.

A manifest is locked by the job that it tells of, an output by who writes it: a job, or a merge of
shards. These are two locks, as manifests of one output may lie in several folders (`work`), and
shards of one output have a manifest each. The kernel lets go of a lock when the process ends,
however it ends, and the loaders that it has started.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ConfigError

_DYING = 10.0  # seconds that the loaders of a killed job may take to end


def locked(path: Path) -> int:
    """The file, made where there is none, open and locked. Closing it lets go of the lock.

    Who removes it does so before. Raises `ConfigError` while another process has it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _opened(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def run_line() -> bytes:
    """What tells others which process has the lock."""
    return json.dumps({"run": os.getpid()}).encode() + b"\n"


@contextlib.contextmanager
def sole_writer(path: Path | None) -> Iterator[None]:
    """Nobody else writes meanwhile what this file stands for; `None`: whoever likes may.

    Raises `ConfigError` while somebody does. At the end the file is gone.
    """
    if path is None:
        yield
        return
    descriptor = locked(path)
    try:
        with contextlib.suppress(OSError):  # a full disk: others learn less, that is all
            os.ftruncate(descriptor, 0)
            os.write(descriptor, run_line())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _opened(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(path, descriptor)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed between the two steps, by who had it


def _lock(path: Path, descriptor: int) -> None:
    until = time.monotonic() + _DYING
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            owner = _last_run(path)
            if time.monotonic() > until or (owner and Path(f"/proc/{owner}").exists()):
                running = f", process {owner}" if owner else ""
                raise ConfigError(
                    f"another job writes this output ({path} is locked{running})"
                ) from None
        time.sleep(0.05)  # a job that was killed: its loaders are about to notice


def _last_run(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError, ValueError):
        lines = path.read_bytes().splitlines()
        runs = [line for line in lines if line.startswith(b'{"run": ')]
        return int(json.loads(runs[-1])["run"]) if runs else 0
    return 0
