"""Which files are meant: a file, a folder, a pattern, a list of these, or `@list.txt`.

Folders and patterns are sorted the natural way (`img2` before `img10`), in the same order on every
machine; a list keeps its own. What begins with a dot is hidden and left out, unless it is named.
Names stay as they were typed, because they become keys; `path` says where to find them.

`without` are places (absolute, links resolved) that are no part of it, nor is what lies beside one
of them under its name and a dot: a job's own output. They are left out of folders and patterns; to
name one is an error.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from penstock.data.chunk import Array
from penstock.data.files import (
    Facts,
    absolute,
    blocks,
    facts,
    facts_of_info,
    file_system,
    is_local,
    plain,
)
from penstock.data.source import digest
from penstock.errors import InputError

_NUMBERS = re.compile(r"(\d+)")
Found = tuple[str, Facts]
_BOTH = "{} is to be read and to be written over: choose another output"


class Listing:
    """Files in their order, with what is known of each. Compact: there may be millions."""

    def __init__(self, found: Sequence[Found], base: str, left: Sequence[str] = ()) -> None:
        self.base = base
        self.left = left  # what `without` left out
        self.names = [name for name, _ in found]
        self.sizes: Array = np.array([entry.size for _, entry in found], np.int64)
        self._stamps = digest("\0".join(entry.stamp for _, entry in found))

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        """Where a file lies, from any folder."""
        return absolute(self.names[index], self.base)

    def fingerprint(self) -> str:
        """Changes with a name, a size or a time of writing."""
        return digest("\0".join(self.names), self.sizes.tobytes(), self._stamps)


def list_files(
    what: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    wanted: Callable[[str], bool],
    base: str = "",
    without: Sequence[str] = (),
) -> Listing:
    """The files that are meant. `wanted` picks, by name, among those that were not named."""
    base = base or os.getcwd()
    items = [what] if isinstance(what, (str, os.PathLike)) else what
    paths = [plain(os.fspath(item)) for item in items]
    if "" in paths:
        raise InputError("expected a path, got ''")
    lister = _Lister(wanted, base, tuple(without))
    found = [entry for path in paths for entry in lister.expand(path)]
    return Listing(found, base, lister.left)


def natural(name: str) -> tuple[list[str | int], str]:
    """The key of the natural order: numbers by their size, folders before what they hold."""
    parts: list[str | int] = []
    for step in name.split("/"):
        pieces = _NUMBERS.split(step)
        parts += [piece if index % 2 == 0 else int(piece) for index, piece in enumerate(pieces)]
        parts.append(-1)  # texts and numbers take turns throughout, so that keys can be compared
    return parts, name


class _Lister:
    """Goes through what was written, in one folder."""

    def __init__(self, wanted: Callable[[str], bool], base: str, without: tuple[str, ...]) -> None:
        self._wanted, self._base, self._without = wanted, base, without
        self._real = functools.cache(os.path.realpath)
        self.left: list[str] = []

    def expand(self, item: str) -> Iterator[Found]:
        """The files that an item stands for."""
        if item.startswith("@"):
            yield from self._from_list(item[1:])
        elif is_local(item):
            yield from self._local(item)
        else:
            yield from self._remote(item)

    def _from_list(self, path: str) -> Iterator[Found]:
        try:
            text = b"".join(blocks(absolute(path, self._base))).decode()
        except OSError as error:
            raise InputError(f"there is no list {path} ({error.strerror or error})") from None
        for line in text.splitlines():
            if line.strip():
                yield from self.expand(plain(line.strip()))

    def _local(self, item: str) -> Iterator[Found]:
        path = absolute(item, self._base)
        if os.path.isdir(path):
            found = [(os.path.join(item, name), entry) for name, entry in self._walk(path, "")]
            yield from sorted(found, key=lambda entry: natural(entry[0]))
        elif not os.path.exists(path) and glob.has_magic(item):
            names = glob.glob(item, root_dir=self._base, recursive=True)
            names = [name for name in set(names) if not os.path.isdir(absolute(name, self._base))]
            for name in sorted(names, key=natural):
                if not self._is_without(absolute(name, self._base)):
                    yield name, _facts(name, self._base)
        else:
            found_there = _facts(item, self._base)
            if self._is_without(path):
                raise InputError(_BOTH.format(item))
            yield item, found_there

    def _is_without(self, path: str) -> bool:
        if not self._without:
            return False
        folder, name = os.path.split(path)
        real = os.path.realpath(path) if os.path.islink(path) else f"{self._real(folder)}/{name}"
        return self._leaves(real)

    def _leaves(self, path: str) -> bool:
        if any(path.startswith(own) and path[len(own) :][:1] in ("", ".") for own in self._without):
            self.left.append(path)
            return True
        return False

    def _walk(self, folder: str, prefix: str, above: tuple[str, ...] = ()) -> Iterator[Found]:
        real = os.path.realpath(folder)
        if real in above:  # a link back to where we come from
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or self._leaves(f"{real}/{entry.name}"):
                    continue
                name = prefix + entry.name
                if entry.is_dir():
                    yield from self._walk(entry.path, name + "/", (*above, real))
                elif self._wanted(entry.name):
                    yield name, _facts(entry.path, "")

    def _remote(self, item: str) -> Iterator[Found]:
        system, inner = file_system(item)
        system.invalidate_cache()  # what it remembers of its folders may be long gone
        named = not glob.has_magic(item)
        if not named:
            infos = system.glob(inner, detail=True)
        else:
            try:
                info = system.info(inner)
            except FileNotFoundError:
                raise InputError(f"there is no file or folder at {item}") from None
            # On the web everything is a file, which is fetched to see whether it is a folder's
            # page.
            if info["type"] != "directory" and (self._wanted(item) or not system.isdir(inner)):
                if self._leaves(item):
                    raise InputError(_BOTH.format(item))
                yield item, facts_of_info(info)
                return
            infos = system.find(inner, detail=True)
        scheme = item.partition("://")[0] + "://"
        root = inner.rstrip("/") + "/"
        found = []
        for path, info in infos.items():
            below = path.removeprefix(root) if named else Path(path).name
            hidden = any(step.startswith(".") for step in below.split("/"))
            if info["type"] == "file" and not hidden and (not named or self._wanted(path)):
                name = system.unstrip_protocol(path) or scheme + path
                if not self._leaves(name):
                    found.append((name, facts_of_info(info)))
        yield from sorted(found, key=lambda entry: natural(entry[0]))


def _facts(name: str, base: str) -> Facts:
    path = absolute(name, base)
    try:
        return facts(path)
    except FileNotFoundError:
        what = "a link to nothing" if os.path.islink(path) else "no file or folder"
        raise InputError(f"there is {what} at {name}") from None
