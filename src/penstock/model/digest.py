"""What a model's content is, as a hash: two that are equal may share what was measured of one."""

from __future__ import annotations

import hashlib
import inspect
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

_UNIMPORTANT = "metadata.json"  # when it was saved


def file_digest(path: str | Path) -> str:
    """Of a file; of an archive, what is in it, without the date."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            return _hex([("", file)])
    with zipfile.ZipFile(path) as archive:
        names = sorted(set(archive.namelist()) - {_UNIMPORTANT})
        return _hex((name, archive.open(name)) for name in names)


def folder_digest(folder: Path) -> str:
    """Of all files in a folder, with their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _hex((str(path.relative_to(folder)), path.open("rb")) for path in files)


def code_digest(function: Any) -> str:
    """Of the file that a function is written in; "" where there is none."""
    function = getattr(function, "python_function", function)
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        return ""
    return file_digest(path) if path and Path(path).is_file() else ""


def text_digest(*texts: str) -> str:
    """Of some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _hex(files: Iterable[tuple[str, IO[bytes]]]) -> str:
    digest = hashlib.sha256()
    for name, file in files:
        with file:
            inner = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
        digest.update(f"{name}\0{inner.hexdigest()}\0".encode())
    return digest.hexdigest()
