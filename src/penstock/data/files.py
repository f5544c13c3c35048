"""One file, wherever it lies: facts about it, its bytes, and parts of them.

A path without `scheme://` is local and takes the short way: `open`, `pread`, memory maps. All
others go through fsspec, which knows memory, S3, GCS, HTTP and many more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from penstock.data.chunk import Array
from penstock.data.extras import need
from penstock.errors import InputError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_STAMPS = (
    *("etag", "ETag", "md5Hash", "Content-MD5", "Digest", "mtime"),
    *("LastModified", "Last-Modified", "updated", "modified", "created"),
)
BLOCK = 16 << 20


class Shorter(InputError):
    """A file ends before something that was in it. No row is to blame."""


class Facts(NamedTuple):
    """Of a file: how long it is, and a stamp that changes when it is written."""

    size: int
    stamp: str


def is_local(path: str) -> bool:
    """Whether a path lies on this machine's own file systems."""
    return not _SCHEME.match(path)


def plain(path: str) -> str:
    """A path as it is stored: `file://` is only another way to write a local one."""
    return path[7:] if path.startswith("file://") else path


def absolute(path: str, base: str) -> str:
    """A path that means the same from every folder."""
    return os.path.join(base, path) if is_local(path) else path


def file_system(path: str) -> tuple[Any, str]:
    """fsspec's file system of a remote path, and the path within it."""
    fsspec = need("fsspec", f"{path.partition('://')[0]}://")
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    return found


def facts_of_info(info: dict[str, Any]) -> Facts:
    """What a file system says of a file, as far as it concerns us."""
    stamp = next((str(info[name]) for name in _STAMPS if info.get(name) is not None), "")
    return Facts(int(info.get("size") or 0), stamp)


def facts_of_status(status: os.stat_result) -> Facts:
    """What this machine's own file systems say."""
    return Facts(status.st_size, str(status.st_mtime_ns))


def facts(path: str) -> Facts:
    """Of one file. Raises `OSError` where there is none."""
    if is_local(path):
        return facts_of_status(os.stat(path))
    system, inner = file_system(path)
    return facts_of_info(system.info(inner))


def open_binary(path: str) -> IO[bytes]:
    """The file, for reading."""
    if is_local(path):
        return open(path, "rb")
    system, inner = file_system(path)
    file: IO[bytes] = system.open(inner, "rb")
    return file


def read_all(path: str) -> bytes:
    """All of it."""
    if is_local(path):
        with open(path, "rb", buffering=0) as file:
            return file.read()
    system, inner = file_system(path)
    return bytes(system.cat_file(inner))


def read_many(paths: Sequence[str]) -> list[bytes | Exception]:
    """Each file, or why it cannot be read: file systems raise what they like. Remote ones at once,
    where their system can do that."""
    if not all(map(is_local, paths)) and len({path.partition("://")[0] for path in paths}) == 1:
        system, _ = file_system(paths[0])
        inner = [file_system(path)[1] for path in paths]
        found = system.cat(inner, on_error="return") if len(set(inner)) > 1 else {}
        if len(found) == len(set(inner)):
            return [found[path] for path in inner]
    return [_read_or_error(path) for path in paths]


def _read_or_error(path: str) -> bytes | Exception:
    try:
        return read_all(path)
    except MemoryError:
        raise
    except Exception as error:
        return error


def read_range(path: str, start: int, stop: int) -> bytes:
    """Its bytes from `start` to `stop`, and no others. Raises `InputError` if it is shorter."""
    if start == stop:
        return b""
    if is_local(path):
        with open(path, "rb", buffering=0) as file:
            data = _exactly(file.fileno(), start, stop)
    else:
        system, inner = file_system(path)
        data = bytes(system.cat_file(inner, start=start, end=stop))
    if len(data) > stop - start:
        raise InputError(
            f"{path}: expected the {stop - start} bytes that were asked for, got {len(data)}: its "
            "server does not send parts of files; fetch it first"
        )
    if len(data) < stop - start:
        raise _shorter(path, stop)
    return data


def read_into(path: str, start: int, array: Array) -> None:
    """The bytes from `start` on of a local file, as many as a contiguous array has. Raises
    `Shorter` if it is that."""
    rest = array.reshape(-1).view(np.uint8).data
    stop = start + len(rest)
    with open(path, "rb", buffering=0) as file:
        while rest:
            read = os.preadv(file.fileno(), [rest], stop - len(rest))
            if not read:
                raise _shorter(path, stop)
            rest = rest[read:]


def _shorter(path: str, size: int) -> Shorter:
    return Shorter(f"{path} is shorter than it was: expected {size} bytes; was it changed?")


def _exactly(descriptor: int, start: int, stop: int) -> bytes:
    parts: list[bytes] = []
    while start < stop and (part := os.pread(descriptor, stop - start, start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def blocks(path: str, size: int = BLOCK) -> Iterator[bytes]:
    """The whole file in turn, a block at a time."""
    with open_binary(path) as file:
        while block := file.read(size):
            yield block
