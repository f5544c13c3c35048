"""Files that are there whole or not at all, in two phases that a job can record between.

    with staged(path) as file:      # 1: under a temporary name, written and synced
        sink.write(file, …)
    publish(path)                   # 2: renamed, and the folder synced

A crash before the second phase leaves the temporary file, which the next `staged` of that path
overwrites; a crash after it leaves the file. Object stores have no rename: there, `publish` copies
within the store and deletes. Who calls sees to it that two do not write one path.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator
from typing import IO

from penstock.data.files import file_system, is_local


def temporary(path: str) -> str:
    """The name under which a file is written: hidden, beside it, always the same."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.partial")


@contextlib.contextmanager
def staged(path: str) -> Iterator[IO[bytes]]:
    """A file to write. At the end of the `with` it is on the disk, under its temporary name.

    When the `with` raises, it is removed. A write that fails says which file it was.
    """
    hidden = temporary(path)
    try:
        with named_errors(hidden), _open(hidden) as file:
            yield file
            file.flush()
            if is_local(hidden):
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            discard(path)
        raise


def publish(path: str) -> None:
    """Give a staged file its name, in place of what had it.

    May be repeated when a crash leaves open whether it was done: a file that has its name keeps it.
    """
    hidden = temporary(path)
    if is_local(path):
        try:
            os.replace(hidden, path)
        except FileNotFoundError:
            if not os.path.exists(path):
                raise
        sync_folder(os.path.dirname(path))
    else:
        system, inner = file_system(path)
        if system.exists(file_system(hidden)[1]) or not system.exists(inner):
            system.mv(file_system(hidden)[1], inner)


def discard(path: str) -> None:
    """Remove a staged file, if there is one."""
    hidden = temporary(path)
    if is_local(hidden):
        with contextlib.suppress(FileNotFoundError):
            os.remove(hidden)
    else:
        system, inner = file_system(hidden)
        if system.exists(inner):
            system.rm_file(inner)


def write_whole(path: str, data: bytes) -> None:
    """Both phases at once, for something small."""
    with staged(path) as file:
        file.write(data)
    publish(path)


def sync_folder(folder: str) -> None:
    """Make names that were given in a local folder survive a power cut."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """A full disk says that it is full, but not where: add the file to errors without one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), path) from error
        raise


def _open(path: str) -> IO[bytes]:
    if is_local(path):
        return open(path, "wb")
    system, inner = file_system(path)
    file: IO[bytes] = system.open(inner, "wb")
    return file
