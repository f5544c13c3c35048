"""Which files are meant: a file, a folder, a pattern, a list of these, or `@list.txt`.

Folders and patterns are sorted the natural way (`img2` before `img10`), in the same order on every
machine; a list keeps its own. What begins with a dot is hidden and left out, unless it is named.
Names stay as they were typed, because they become keys; `path` says where to find them.

`without` are places (absolute, links resolved) that are no part of it, nor is what lies beside one
of them under its name and a dot: a job's own output. They are left out of folders and patterns; to
name one is an error.

Memory is that of the names, packed (`names`): they are sorted some at a time, and then merged.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import heapq
import itertools
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.data.chunk import Array
from penstock.data.files import (
    Facts,
    absolute,
    blocks,
    facts,
    facts_of_info,
    facts_of_status,
    file_system,
    is_local,
    plain,
)
from penstock.data.names import Names, Texts
from penstock.data.source import digest
from penstock.errors import InputError

_NUMBERS = re.compile(r"\d+|/")
_SORTED_AT_ONCE = 1 << 16
_ALIGNED = 8
_NO_FILES = {
    stat.S_IFIFO: "a pipe: write what it gives into a file first",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
Found = tuple[str, Facts]
_BOTH = "{} is to be read and to be written over: choose another output"


class Listing:
    """Files in their order, with what is known of each. Compact: there may be millions."""

    def __init__(self, found: Iterable[Found], base: str, left: Sequence[str] = ()) -> None:
        self.base = base
        self.left = left  # what `without` left out
        self.names = Names()
        sizes = array("q")
        stamps = hashlib.sha256()
        for name, entry in found:
            self.names.append(name)
            sizes.append(entry.size)
            stamps.update(entry.stamp.encode() + b"\0")
        self.sizes: Array = np.frombuffer(sizes, np.int64)
        self._stamps = stamps.hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        """Where a file lies, from any folder."""
        return absolute(self.names[index], self.base)

    def fingerprint(self) -> str:
        """Changes with a name, a size or a time of writing."""
        arrays = (*self.names.arrays(), self.sizes)
        return digest(*(one.view(np.uint8).data for one in arrays), self._stamps)

    def unchanged(self) -> bool:
        """Whether those that are still there are as they were found. Files elsewhere than on this
        machine are not asked for again: that may take long, and each way tells other stamps."""
        stamps, all_told = hashlib.sha256(), True
        for index, size in enumerate(self.sizes):
            path = self.path(index)
            try:
                found = facts(path) if is_local(path) else None
            except OSError:  # who reads it will say so
                found = None
            if found is None:
                all_told = False
            elif found.size != size:
                return False
            else:
                stamps.update(found.stamp.encode() + b"\0")
        return not all_told or stamps.hexdigest() == self._stamps

    def save(self, path: Path) -> dict[str, Any]:
        """How another process finds it, without looking for files: as JSON, and this file."""
        arrays = (*self.names.arrays(), self.sizes)
        with open(path, "wb") as file:
            for one in arrays:
                file.write(one.data)
                file.write(bytes(-one.nbytes % _ALIGNED))
        return {
            "path": str(path),
            "arrays": [[str(one.dtype), one.nbytes] for one in arrays],
            "base": self.base,
            "stamps": self._stamps,
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> Listing:
        """The inverse of `save`: mapped, so that it takes no memory of its own."""
        whole = np.memmap(saved["path"], np.uint8, "r").view(np.ndarray)
        arrays, at = [], 0
        for dtype, size in saved["arrays"]:
            arrays.append(whole[at : at + size].view(dtype))
            at += size + -size % _ALIGNED
        listing = cls((), saved["base"])
        *names, listing.sizes = arrays
        listing.names, listing._stamps = Names.of(names), saved["stamps"]
        return listing


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
    found = (entry for path in paths for entry in lister.expand(path))
    return Listing(found, base, lister.left)


def natural(name: str) -> tuple[str, str]:
    """The key of the natural order: numbers by their size, folders before what they hold.

    Texts and numbers take turns throughout, so that keys can be compared: a text ends with what is
    less than any letter; a number begins with how many digits it has, and after a folder with less
    than that.
    """
    return _NUMBERS.sub(_key, name) + "\0\1", name


def _key(match: re.Match[str]) -> str:
    text = match[0]
    if text == "/":
        return "\0\1"
    digits = str(int(text))
    return f"\0{chr(len(digits) + 1)}{digits}"


def _sorted(found: Iterable[Found]) -> Iterator[Found]:
    """In natural order, each name once."""
    runs: list[_Run] = []
    rest = iter(found)
    while some := list(itertools.islice(rest, _SORTED_AT_ONCE)):
        some.sort(key=_order)
        runs.append(_Run(some))
    before = ""
    for name, entry in heapq.merge(*runs, key=_order):
        if name != before:
            yield name, entry
        before = name


def _order(found: Found) -> tuple[str, str]:
    return natural(found[0])


class _Run:
    """Some of what was found, packed."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._names, self._stamps = Names(), Texts()
        self._sizes = array("q", (entry.size for _, entry in found))
        for name, entry in found:
            self._names.append(name)
            self._stamps.append(entry.stamp)

    def __iter__(self) -> Iterator[Found]:
        return zip(self._names, map(Facts, self._sizes, self._stamps), strict=True)


class _Lister:
    """Goes through what was written, in one folder."""

    def __init__(self, wanted: Callable[[str], bool], base: str, without: tuple[str, ...]) -> None:
        self._wanted, self._base, self._without = wanted, base, without
        self._real = functools.cache(os.path.realpath)
        self.left: list[str] = []
        self._open_lists: list[str] = []  # each named in the one before

    def expand(self, item: str) -> Iterator[Found]:
        """The files that an item stands for."""
        if item.startswith("@"):
            yield from self._from_list(item[1:])
        elif is_local(item):
            yield from self._local(item)
        else:
            yield from self._remote(item)

    def _from_list(self, path: str) -> Iterator[Found]:
        place = absolute(path, self._base)
        if is_local(place):
            place = os.path.realpath(place)
        if place in self._open_lists:
            within = " in ".join([f"@{path}", *reversed(self._open_lists)])
            raise InputError(f"a list of files names itself: {within}")
        try:
            text = os.fsdecode(b"".join(blocks(place)))
        except OSError as error:
            raise InputError(f"there is no list {path} ({error.strerror or error})") from None
        self._open_lists.append(place)
        for line in text.removeprefix("\ufeff").split("\n"):
            if line.strip():
                yield from self.expand(plain(line.strip()))
        self._open_lists.pop()

    def _local(self, item: str) -> Iterator[Found]:
        path = absolute(item, self._base)
        if os.path.isdir(path):
            yield from _sorted(self._walk(path, os.path.join(item, "")))
        elif not os.path.exists(path) and glob.has_magic(item):
            yield from self._some(item, _sorted(self._matching(item)))
        else:
            found_there = _facts(item, self._base)
            if self._is_without(path):
                raise InputError(_BOTH.format(item))
            yield item, found_there

    def _matching(self, pattern: str) -> Iterator[Found]:
        for name in self._named(pattern):
            path = absolute(name, self._base)
            if not os.path.isdir(path) and not self._is_without(path):
                yield name, _facts(name, self._base)

    def _named(self, pattern: str) -> Iterator[str]:
        """What a pattern matches. Python's own `**` follows links back to folders above."""
        steps = pattern.split("/")
        if "**" not in steps:
            yield from glob.iglob(pattern, root_dir=self._base)
            return
        at = steps.index("**")
        head, tail = "/".join(steps[:at]), "/".join(steps[at + 1 :]) or "*"
        for top in glob.iglob(head, root_dir=self._base) if head else ["/" if at else ""]:
            for folder in self._folders(top):
                yield from self._named(os.path.join(glob.escape(folder), tail))

    def _folders(self, folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        """A folder and all in it, without what is hidden."""
        path = absolute(folder, self._base)
        real = os.path.realpath(path)
        if real in above or not os.path.isdir(path):
            return
        yield folder
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        for name in names:
            if not name.startswith("."):
                yield from self._folders(os.path.join(folder, name), (*above, real))

    def _some(self, pattern: str, found: Iterable[Found]) -> Iterator[Found]:
        """What was found. Raises `InputError` where nothing was: a name may be mistyped."""
        before, none = len(self.left), True
        for entry in found:
            none = False
            yield entry
        if none and len(self.left) == before:
            raise InputError(f"there is no file at {pattern}, nor one that it is a pattern of")

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
                    yield name, _facts(entry.path, "", entry)

    def _remote(self, item: str) -> Iterator[Found]:
        system, inner = file_system(item)
        system.invalidate_cache()  # what it remembers of its folders may be long gone
        named = not glob.has_magic(item)
        if not named:
            infos = system.glob(inner, detail=True)
        else:
            try:
                info = system.info(inner)
            except FileNotFoundError as error:
                raise InputError(_why_not(item, error.__cause__)) from None
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
        yield from _sorted(found) if named else self._some(item, _sorted(found))


def _why_not(item: str, cause: BaseException | None) -> str:
    """Why there is no such file: fsspec calls everything that goes wrong on the web so."""
    status = getattr(cause, "status", None)
    if not item.startswith(("http://", "https://")) or cause is None or status in (404, 410):
        return f"there is no file or folder at {item}"
    host = item.split("/")[2]
    if status is not None:
        return f"{item}: {host} answered {status} {getattr(cause, 'message', '')}".rstrip()
    return f"{item}: {host} did not answer: {str(cause) or type(cause).__name__}"


def _facts(name: str, base: str, entry: os.DirEntry[str] | None = None) -> Facts:
    path = absolute(name, base)
    try:
        status = os.stat(path) if entry is None else entry.stat()
    except FileNotFoundError:
        what = "a link to nothing" if os.path.islink(path) else "no file or folder"
        raise InputError(f"there is {what} at {name}") from None
    if not stat.S_ISREG(status.st_mode):  # to open a pipe is to wait for whoever writes it
        found = _NO_FILES.get(stat.S_IFMT(status.st_mode), "something else")
        raise InputError(f"expected a file at {name}, found {found}")
    return facts_of_status(status)
