"""The manifest: what a job is about and which parts are done, a JSON line each, never rewritten.

A line is written and synced after what it tells of is on the disk under its name, so after a crash
the manifest may know too little but never too much. A last line that was cut short is dropped. The
file is locked (`locks`) while a job, or one of its loaders, lives.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.offline.locks import locked, run_line

FORMAT = 1


class Manifest:
    """Open and locked, from `open_manifest` to `close`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor  # holds the lock; loaders inherit it
        self.header: dict[str, Any] = {}
        self.parts: dict[int, dict[str, Any]] = {}
        self.done: dict[str, Any] = {}
        self.runs = 0

    def begin(self, header: dict[str, Any]) -> None:
        """Start anew, about this."""
        os.ftruncate(self.descriptor, 0)
        self.parts, self.done, self.runs = {}, {}, 0
        self._append({"penstock": FORMAT, **header})
        self.header = header

    def begin_run(self) -> None:
        """This process goes on with it."""
        self._write(run_line())
        self.runs += 1

    def record(self, part: int, facts: dict[str, Any]) -> None:
        """A part is on the disk, under its name."""
        self._append({"part": part, **facts})
        self.parts[part] = facts

    def forget_parts(self, parts: list[int]) -> None:
        """These are to be done again: they may have been made of something else."""
        self._append({"forgotten": parts})
        for part in parts:
            self.parts.pop(part, None)

    def finish(self, facts: dict[str, Any]) -> None:
        """The output is on the disk, under its name."""
        self._append({"done": facts})
        self.done = facts

    def close(self) -> None:
        """Let go of the lock. What was never begun leaves nothing; what was, stays."""
        if not os.fstat(self.descriptor).st_size:
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def forget(self) -> None:
        """Take it for new; on the disk, `begin` does that."""
        self.header, self.parts, self.done, self.runs = {}, {}, {}, 0

    def _append(self, record: dict[str, Any]) -> None:
        self._write(json.dumps(record).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        end = os.lseek(self.descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(data):
                written += os.write(self.descriptor, data[written:])
            os.fsync(self.descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, end)
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error

    def read(self) -> None:
        """Learn what it says; drop a line that was cut short."""
        text = b""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        while block := os.read(self.descriptor, 1 << 20):
            text += block
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            os.ftruncate(self.descriptor, len(whole))
        for line in whole.splitlines():
            self._learn(line)

    def _learn(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ConfigError(
                f"{self.path} is no manifest, or a damaged one: {line[:40]!r}; "
                "overwrite it with --restart (restart=True)"
            )
        if "penstock" in record:
            if record.pop("penstock") != FORMAT:
                raise ConfigError(
                    f"{self.path} is of another version of penstock: begin anew with "
                    "--restart (restart=True)"
                )
            self.header = record
        elif "part" in record:
            self.parts[record.pop("part")] = record
        elif "forgotten" in record:
            for part in record["forgotten"]:
                self.parts.pop(part, None)
        elif "done" in record:
            self.done = record["done"]
        else:
            self.runs += 1


def open_manifest(path: Path, anew: bool = False) -> Manifest:
    """Open it, or make it, and lock it. Raises `ConfigError` while another job has it.

    `anew`: what it says does not matter, not even whether it can be understood.
    """
    descriptor = locked(path)
    try:
        manifest = Manifest(path, descriptor)
        if not anew:
            manifest.read()
    except BaseException:
        os.close(descriptor)
        raise
    return manifest


def check_same(known: dict[str, Any], found: dict[str, Any], path: Path) -> None:
    """Raise `ConfigError` when a job is not about what its manifest is about."""
    changed = [name for name in found if known.get(name) != found[name]]
    if changed:
        before, now = known.get("options", {}), found.get("options", {})
        words = {"code": "what is in the file of map"}
        options = [words.get(name, name) for name in now if before.get(name) != now[name]]
        raise another(changed, path, options)


def another(changed: list[str], path: Path, options: Sequence[str] = ()) -> ConfigError:
    """A job is not about what its manifest is about."""
    words = {
        "model": "another model, or other options of it",
        "options": f"other options ({', '.join(options)})",
    }
    return ConfigError(
        f"{path} is of a job with "
        f"{' and '.join(words.get(name, f'another {name}') for name in changed)}: put things back "
        "as they were to go on, or begin anew with --restart (restart=True)"
    )
