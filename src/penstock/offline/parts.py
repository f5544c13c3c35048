"""Parts on the disk: written under temporary names, published, and at the end joined.

A part is a file of the output's format and, where needed, files beside it: `.keys.npy` where the
format has no place for keys, `.rows.npy` with the rows' numbers for the parts of a shard, and
`.errors.jsonl` with the rows that failed. A part in which every row failed has only that. One whose
outputs are large is written in pieces, so that it is never in memory as a whole: a second one has
the same files again, `part-0000003-0001.parquet` and so on.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from penstock.data.arraysink import NpySink
from penstock.data.atomic import publish, staged
from penstock.data.chunk import Array, Failure
from penstock.data.sinks import Sink
from penstock.errors import ConfigError
from penstock.offline.failures import by_kind, lines

DATA, KEYS, ROWS, ERRORS = "", ".keys", ".rows", ".errors"
Facts = dict[str, int | list[str] | dict[str, int]]
_ANEW = "begin anew with --restart (restart=True)"


@dataclass
class Content:
    """What came of a part: the rows that succeeded, with their keys and numbers, and the others."""

    columns: dict[str, Array]
    keys: Array
    rows: Array
    failures: list[Failure] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the columns."""
        return sum(map(_size, self.columns.values()))


class PartStore:
    """A folder of parts. `numbered`: their rows' numbers are kept, too."""

    def __init__(self, folder: Path, sink: Sink, numbered: bool = False) -> None:
        self.folder = folder
        self.sink = sink
        self._numbered = numbered

    def path(self, part: int, what: str = DATA) -> str:
        """Where a file of a part lies; `what` it holds, perhaps after a piece's number."""
        suffix = {DATA: self.sink.suffix, ERRORS: ".jsonl"}.get(_kind(what), ".npy")
        return str(self.folder / f"part-{part:07d}{what}{suffix}")

    def write(self, part: int, content: Content, piece: int = 0) -> Facts:
        """The first phase: all files of a piece of a part, synced, under temporary names."""
        files: list[str] = []

        def put(what: str, write: Callable[[IO[bytes]], object]) -> None:
            what = f"-{piece:04d}{what}" if piece else what
            with staged(self.path(part, what)) as file:
                write(file)
            files.append(what)

        if len(content.keys):
            keys = content.keys if self.sink.keeps_keys else None
            put(DATA, lambda file: self.sink.write(file, content.columns, keys))
            if keys is None:
                put(KEYS, lambda file: NpySink().write(file, {"": content.keys}))
            if self._numbered:
                put(ROWS, lambda file: np.save(file, content.rows))
        if content.failures:
            put(ERRORS, lambda file: file.write(lines(content.failures)))
        return {
            "written": len(content.keys),
            "failed": len(content.failures),
            "kinds": by_kind(content.failures),
            "files": list(files),
        }

    def publish(self, part: int, facts: Facts) -> None:
        """The second phase: their names."""
        files = facts["files"]
        assert isinstance(files, list)
        for what in files:
            publish(self.path(part, what))

    def paths(self, parts: dict[int, Facts], what: str = DATA) -> list[str]:
        """These files of the parts that have them, in order."""
        return [
            self.path(part, file)
            for part in sorted(parts)
            for file in files_of(parts[part])
            if _kind(file) == what
        ]

    def check(self, parts: dict[int, Facts], mended: str = _ANEW) -> None:
        """Raise `ConfigError` when a file that should be there is not; `mended` says by what."""
        for part, facts in parts.items():
            for what in files_of(facts):
                if not Path(path := self.path(part, what)).exists():
                    raise ConfigError(f"{path} is gone: {mended}")

    def make(self) -> None:
        """The folder, if there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """All of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def together(pieces: Sequence[Facts]) -> Facts:
    """What is known of a part, of its pieces."""
    first, *others = pieces
    if not others:
        return first
    kinds: Counter[str] = Counter()
    for facts in pieces:
        assert isinstance(facts["kinds"], dict)
        kinds.update(facts["kinds"])
    return {
        "written": count(pieces, "written"),
        "failed": count(pieces, "failed"),
        "kinds": dict(kinds),
        "files": [file for facts in pieces for file in files_of(facts)],
    }


def count(some: Iterable[Facts], name: str) -> int:
    """Rows that were `written`, or that `failed`."""
    counts = (facts[name] for facts in some)
    return sum(number for number in counts if isinstance(number, int))


def files_of(facts: Facts) -> list[str]:
    """Which files a part has."""
    files = facts["files"]
    assert isinstance(files, list)
    return files


def forms_in(some: Iterable[Facts]) -> Iterator[list[str]]:
    """What the columns of those parts look like that have rows."""
    for facts in some:
        if forms := facts.get("forms"):
            assert isinstance(forms, list)
            yield forms


def keys_path(out: str) -> str:
    """Where keys go that have no place in the output: `scores.npy` to `scores.keys.npy`."""
    stem, dot, suffix = out.rpartition(".")
    return f"{stem}{KEYS}{dot}{suffix}"


def errors_path(out: str) -> str:
    """The side file of an output."""
    return f"{out}{ERRORS}.jsonl"


def _kind(file: str) -> str:
    """What a file holds, of whichever piece."""
    return "".join(file.partition(".")[1:])


def _size(column: Array) -> int:
    if column.dtype != object:
        return column.nbytes
    return sum(len(text) for text in column.ravel() if isinstance(text, (str, bytes)))


def concatenate(paths: Iterable[str], file: IO[bytes]) -> None:
    """Lines, one file after the other."""
    for path in paths:
        with open(path, "rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)
