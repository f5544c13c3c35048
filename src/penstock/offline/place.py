"""Where a job's files lie: the output, its side files, and what is kept until it is whole.

    scores.parquet                  the output
    scores.parquet.errors.jsonl     rows that failed
    scores.keys.npy                 keys, where the format has no place for them
    scores.parquet.manifest.jsonl   what the job is about, and what is done
    scores.parquet.parts/           parts; removed at the end
    .scores.parquet.lock            who writes the output just now; removed at the end

Of a shard, `scores.parquet.3-of-8.manifest.jsonl` and `….3-of-8.parts/`, until they are merged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.data import open_sink
from penstock.data.files import is_local, plain
from penstock.data.sinks import Sink
from penstock.errors import ConfigError
from penstock.offline.parts import PartStore, errors_path, keys_path
from penstock.offline.settings import JobSettings

_MANIFEST = ".manifest.jsonl"
_TABLES = (".parquet", ".arrow")
_APART = "part.arrow"  # what their parts are that must be taken apart again to be merged


@dataclass(frozen=True)
class Place:
    """An output and what belongs to it. `out` is absolute; `shard` is "" or "3-of-8"."""

    out: str
    work: Path
    shard: str
    options: dict[str, Any]
    whole: bool = True  # parts are joined as they are

    @property
    def sink(self) -> Sink:
        """How the output is written."""
        return open_sink(self.out, **self.options)

    @property
    def keys(self) -> str:
        """Where keys go that have no place in the output."""
        return keys_path(self.out)

    @property
    def errors(self) -> str:
        """The side file."""
        return errors_path(self.out)

    @property
    def manifest(self) -> Path:
        """The manifest."""
        return self._beside(_MANIFEST)

    @property
    def lock(self) -> Path | None:
        """What who writes the output holds; `None` for who writes the parts of a shard alone, and
        where the output is not on this machine."""
        if self.shard or not is_local(self.out):
            return None
        folder, name = os.path.split(self.out)
        return Path(folder, f".{name}.lock")

    @property
    def own(self) -> tuple[str, ...]:
        """What is no part of a source, with all that begins with one of these names and a dot."""
        beside = str(self.work / os.path.basename(self.out))
        paths = dict.fromkeys((self.out, beside, self.keys))
        return tuple(_real(path) if is_local(path) else path for path in paths)

    def store(self) -> PartStore:
        """The parts."""
        path, options = self._part
        return PartStore(self._beside(".parts"), open_sink(path, **options), bool(self.shard))

    def loader_sink(self) -> dict[str, Any]:
        """The store's sink, as a loader opens it."""
        path, options = self._part
        return {"sink": path, "options": options, "numbered": bool(self.shard)}

    @property
    def _part(self) -> tuple[str, dict[str, Any]]:
        """What parts are like: the output, or what its rows can be taken from a few at a time."""
        table = self.sink.suffix in _TABLES and not self.whole
        return (_APART, {}) if table else (self.out, self.options)

    def shards(self) -> list[Place]:
        """The places of all shards of this output that there are."""
        name = re.escape(os.path.basename(self.out))
        pattern = re.compile(rf"{name}\.(\d+-of-\d+){re.escape(_MANIFEST)}")
        found = (pattern.fullmatch(path.name) for path in sorted(self.work.iterdir()))
        return [Place(self.out, self.work, match[1], self.options) for match in found if match]

    def _beside(self, suffix: str) -> Path:
        shard = f".{self.shard}" if self.shard else ""
        return self.work / f"{os.path.basename(self.out)}{shard}{suffix}"


def _real(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def place_of(out: Any, settings: JobSettings, options: dict[str, Any]) -> Place:
    """Where a job's files lie. Raises `ConfigError`."""
    path = plain(os.fspath(out))
    local = is_local(path)
    if not local and not settings.work:
        raise ConfigError(f"{path} is not on this machine: pass work, a local folder for the parts")
    path = os.path.abspath(path) if local else path
    work = Path(settings.work or os.path.dirname(path)).absolute()
    shard = "" if settings.place is None else f"{settings.place[0] + 1}-of-{settings.place[1]}"
    whole = not shard or settings.shards == "contiguous"
    place = Place(path, work, shard, options, whole)
    sink = place.sink  # it says what is wrong with the suffix or the options
    if sink.keeps_keys and sink.key in settings.keep:
        raise ConfigError(
            f"keep: {sink.key!r} is what keys are called in the output: take them from that column "
            f"with key={sink.key!r}, or leave it out"
        )
    return place
