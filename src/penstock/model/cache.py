"""What was found out about a model, remembered for the next start.

One JSON file an entry, in `$PENSTOCK_CACHE` or `~/.cache/penstock`, named after a hash of all that
the findings depend on: the model's content, the device, versions, settings. A file is written aside
and renamed, and checked when it is read: one that is damaged or of another format is as good as
none. So is a folder that cannot be written. Nothing here raises because of the disk.

Workers that start together would measure each other: `alone` lets one find out, and the next read.
A mode that may kill its process (XLA has such ways) is marked while it is tried (`trying`), so that
the process after next leaves it alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT = 1

_log = logging.getLogger(__name__)
_PAUSE = 0.05
_LATELY = 24 * 3600.0
_TIMES = 2


def folder() -> Path:
    """Where everything is kept. For a user without a home, a place that cannot be written."""
    try:
        return Path(os.environ.get("PENSTOCK_CACHE") or "~/.cache/penstock").expanduser()
    except RuntimeError:
        return Path(os.devnull) / "penstock"


class Entry:
    """What is known under one key. `key` holds all that it depends on; `{}`: nothing is kept."""

    def __init__(self, key: dict[str, Any], place: Path | None = None) -> None:
        self._key = json.loads(_text(key))
        self._place = (place or folder()) / "models"
        name = hashlib.sha256(_text(key).encode()).hexdigest()[:32]
        self.path = self._place / f"{name}.json"
        self.kept = bool(key)

    def read(self) -> dict[str, Any] | None:
        """The findings, or `None` if there are none that can be believed."""
        if not self.kept:
            return None
        key, findings = _read(self.path)
        if findings is not None and key != self._key:
            _log.info("cache: %s is not used: it was made for something else", self.path)
            return None
        return findings

    def write(self, findings: dict[str, Any]) -> None:
        """Keep the findings, if the folder allows it."""
        if not self.kept:
            return
        data = {
            "format": FORMAT,
            "key": self._key,
            "checksum": _checksum(findings),
            "findings": findings,
        }
        aside = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._place.mkdir(0o700, parents=True, exist_ok=True)
            aside.write_text(_text(data))
            aside.replace(self.path)
        except OSError as error:
            _log.info("cache: %s is not kept: %s", self.path, error)
            with contextlib.suppress(OSError):
                aside.unlink()

    def forget(self) -> None:
        """Keep nothing any more, until something is written."""
        if self.kept:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """While nobody else is inside, on this machine; after `patience` seconds all the same."""
        descriptor = -1
        if self.kept:
            with contextlib.suppress(OSError):
                self._place.mkdir(0o700, parents=True, exist_ok=True)
                descriptor = os.open(
                    self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
                )
        try:
            until = time.monotonic() + patience
            while descriptor >= 0 and time.monotonic() < until:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(_PAUSE)
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Mark what is being tried; if this process dies of it, twice, `deadly` will tell."""
        mark = self._mark(what)
        if self.kept:
            with contextlib.suppress(OSError):
                self._place.mkdir(0o700, parents=True, exist_ok=True)
                with mark.open("a") as file:
                    file.write("tried\n")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()

    def deadly(self, what: str) -> bool:
        """Whether a process ended each of the last times that it tried this, lately.

        Once says nothing: it may have been told to end just then.
        """
        mark = self._mark(what)
        try:
            age = time.time() - mark.stat().st_mtime
            return age < _LATELY and len(mark.read_text().splitlines()) >= _TIMES
        except OSError:
            return False

    def _mark(self, what: str) -> Path:
        return self.path.with_suffix(f".{what}.trying")


def findings_at(path: Path) -> dict[str, Any] | None:
    """What the entry in this file says, whatever its key is; `None` if it cannot be believed."""
    return _read(path)[1]


def all_entries(place: Path | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Keys and findings of all entries that can be believed, the newest last."""
    with contextlib.suppress(OSError):
        files = sorted(
            (place or folder()).glob("models/*.json"), key=lambda path: path.stat().st_mtime
        )
        for path in files:
            key, findings = _read(path)
            if findings is not None:
                yield key, findings


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    try:
        data = json.loads(path.read_bytes())
        if data["format"] != FORMAT:
            raise ValueError("it is of another format")
        if data["checksum"] != _checksum(data["findings"]):
            raise ValueError("its checksum is wrong")
        key, findings = data["key"], data["findings"]
        if not isinstance(key, dict) or not isinstance(findings, dict):
            raise ValueError("it is no entry")
    except (FileNotFoundError, IsADirectoryError):
        return {}, None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("cache: %s is not used and made anew: %s", path, error)
        return {}, None
    return key, findings


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _checksum(findings: Any) -> str:
    return hashlib.sha256(_text(findings).encode()).hexdigest()
