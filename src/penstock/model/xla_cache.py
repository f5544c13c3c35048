"""XLA's compiled programs, kept between starts: on a GPU each takes seconds to make.

TensorFlow reads the folder from an environment variable when it is imported, so `prepare` is called
before that. A folder that the user has named in TF_XLA_FLAGS is left alone. Programs are code: the
folder must be the user's own, and nobody else's to write. What was not used for longest goes when
all of it is more than `MOST`.

A call whose program cannot be written fails. So where the disk is nearly full, or may not be
written, programs are only read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from pathlib import Path

from penstock.devices.cards import amount, usable_cards
from penstock.model import cache

MOST = 4 << 30
LEAST = 1 << 30  # what must be free on the disk: each of a ladder's programs has the weights in it
_FLAGS = "TF_XLA_FLAGS"
_FOLDER = "--tf_xla_persistent_cache_directory"
_READ_ONLY = "--tf_xla_persistent_cache_read_only=true"
_log = logging.getLogger(__name__)


def prepare(gpu: bool | None = None) -> Path | None:
    """Let TensorFlow keep XLA's programs; returns where, or `None` where it does not.

    `gpu`: whether this process will use one; found out where that is not said. XLA's programs for
    CPUs are not kept: they are quick to make.
    """
    flags = os.environ.get(_FLAGS, "")
    if "tensorflow" in sys.modules or _FOLDER in flags:
        return None
    if not (bool(usable_cards()) if gpu is None else gpu):
        return None
    folder = cache.folder() / "xla"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError("it is not this user's alone to write")
        if any(character.isspace() for character in str(folder)):
            raise OSError("its path has a space in it, which TF_XLA_FLAGS cannot say")
        make_room(folder)
    except OSError as error:
        _log.info("XLA's programs are not kept in %s: %s", folder, error)
        return None
    reason = _unwritable(folder)
    if reason:
        _log.warning("XLA's programs are not kept in %s: %s", folder, reason)
    added = f"{_FOLDER}={folder} {_READ_ONLY if reason else ''}"
    os.environ[_FLAGS] = f"{flags} {added}".strip()
    return folder


def _unwritable(folder: Path) -> str:
    """Why nothing more is to be written there, or ""."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot be written"
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    return f"only {amount(free)} are free on its disk" if free < LEAST else ""


def used() -> bool:
    """Whether TensorFlow keeps XLA's programs in this process."""
    return _FOLDER in os.environ.get(_FLAGS, "")


def make_room(folder: Path, most: int = MOST) -> None:
    """Remove what was used longest ago, until the rest is small enough."""
    kept: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                used = max(status.st_atime, status.st_mtime)
                kept.append((used, status.st_size, path))
    total = 0
    for _, size, path in sorted(kept, reverse=True):
        total += size
        if total > most:
            with contextlib.suppress(OSError):
                path.unlink()
