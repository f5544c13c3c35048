"""Checkpoints: one file each, there whole or not at all, the newest few of them kept.

    000012-step-2400.checkpoint:  a line that says what it is; the header's size and checksum;
                                  the header, which is JSON; the arrays, one after another

Files are numbered as they are written, so the newest is the newest, also where training began anew
in the same folder. One process writes (the chief); any number may read. A file is written under
another name, synced and renamed (`data/atomic`): whatever is killed, the older ones are whole.
Every byte is covered by a checksum; a file that is damaged is passed over, with a warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from penstock.data.atomic import publish, staged
from penstock.data.features import numpy_dtype
from penstock.errors import ConfigError

_ANEW = "begun-after"
_MAGIC = b"penstock checkpoint 1\n"
_SIZES = struct.Struct("<QI")  # of the header: its length, its checksum
_NAME = re.compile(r"(\d{6,})-step-(\d+)\.checkpoint")


@dataclass(frozen=True)
class State:
    """All that a run needs to go on as if nothing had been. `facts` are what JSON can hold."""

    step: int
    epoch: int
    step_in_epoch: int
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Damaged(Exception):
    """A file is not what was written."""


class Checkpoints:
    """The checkpoints in a folder, which is made when the first one is saved."""

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"keep: expected at least 1 checkpoint, got {keep}")
        self.folder, self._keep = Path(folder), keep
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"checkpoints: expected a folder, got the file {self.folder}")

    def save(self, state: State) -> Path:
        """Write a checkpoint, and remove those that are too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = _number(self.paths()[-1]) + 1 if self.paths() else 0
        path = self.folder / f"{number:06d}-step-{state.step}.checkpoint"
        with staged(str(path)) as file:
            _write(file, state)
        publish(str(path))
        for old in self.paths()[: -self._keep]:
            old.unlink(missing_ok=True)
        self._clear(number)
        return path

    def begin_anew(self) -> None:
        """What is there by now is another run's: `newest(own=True)` passes it over."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, paths = str(self.folder / _ANEW), self.paths()
        with staged(path) as file:
            file.write(str(_number(paths[-1]) if paths else -1).encode())
        publish(path)

    def newest(self, own: bool = False) -> State | None:
        """The newest that is whole; `None` where there is none. `own`: since this run was begun."""
        others = -1
        if own:
            with contextlib.suppress(OSError, ValueError):
                others = int((self.folder / _ANEW).read_text())
        for path in reversed([path for path in self.paths() if _number(path) > others]):
            try:
                with path.open("rb") as file:
                    return _read(file)
            except FileNotFoundError:
                continue  # its time has just come
            except Damaged as error:
                warnings.warn(
                    f"the checkpoint {path} is damaged ({error}): going on from the one before it",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return None

    def paths(self) -> list[Path]:
        """All of them, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=_number)

    def _clear(self, number: int) -> None:
        """Remove what writers left that were killed."""
        for path in self.folder.glob(".*.checkpoint.partial"):
            written = _NAME.fullmatch(path.name[1 : -len(".partial")])
            if written and int(written[1]) <= number:
                path.unlink(missing_ok=True)


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def _write(file: IO[bytes], state: State) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays.items()}
    views = {name: _bytes(array, name) for name, array in arrays.items()}
    header = json.dumps(
        {
            "step": state.step,
            "epoch": state.epoch,
            "step_in_epoch": state.step_in_epoch,
            "facts": state.facts,
            "arrays": [
                [name, array.dtype.name, list(state.arrays[name].shape), zlib.crc32(views[name])]
                for name, array in arrays.items()
            ],
        }
    ).encode()
    file.write(_MAGIC + _SIZES.pack(len(header), zlib.crc32(header)) + header)
    for view in views.values():
        file.write(view)


def _read(file: IO[bytes]) -> State:
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
        raise Damaged(f"expected {_MAGIC!r} at its beginning, got {start!r}")
    sizes = _SIZES.unpack(_exactly(file, _SIZES.size))
    text = _exactly(file, sizes[0])
    if zlib.crc32(text) != sizes[1]:
        raise Damaged("its header has another checksum")
    header = json.loads(text)
    arrays = {}
    for name, kind, shape, checksum in header.pop("arrays"):
        array = np.empty(shape, numpy_dtype(kind))
        view = _bytes(array, name)
        if file.readinto(view) != len(view):  # type: ignore[attr-defined]
            raise Damaged(f"it ends within {name}")
        if zlib.crc32(view) != checksum:
            raise Damaged(f"{name} has another checksum")
        arrays[name] = array
    if file.read(1):
        raise Damaged("there is something behind its end")
    return State(**header, arrays=arrays)


def _bytes(array: np.ndarray[Any, Any], name: str) -> memoryview:
    """An array's memory, of whatever dtype."""
    if array.dtype.hasobject:
        raise TypeError(f"{name}: expected an array of numbers, got {array.dtype}")
    return array.reshape(-1).view(np.uint8).data


def _exactly(file: IO[bytes], size: int) -> bytes:
    left = os.fstat(file.fileno()).st_size - file.tell()
    if size > left:
        raise Damaged(f"expected {size} more bytes, got {left}")
    return file.read(size)
