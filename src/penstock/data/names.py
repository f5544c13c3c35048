"""Names of millions of files: their bytes in one block, a folder once for all that follow in it.

`Texts` are bytes and where each text ends. `Names` are texts of two kinds: folders, with the number
of the first file in each, and what comes after the last slash. Both grow by `append`; what is made
of `arrays` (which may be mapped from a file) does not.
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from penstock.data.chunk import Array

_CODEC = ("utf-8", "surrogatepass")  # also of names that are no text, as Python writes them
_ITER = 1 << 16  # texts whose ends are taken out of an array at once


class _Packed(Sequence[str]):
    """A sequence that makes each text when it is asked for; a slice is a list."""

    @abc.abstractmethod
    def _at(self, at: int) -> str:
        """The one in this place."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self._at(range(len(self))[index])


class Texts(_Packed):
    """Texts, one after the other."""

    def __init__(self) -> None:
        self._block: bytearray | Array = bytearray()
        self._ends: array[int] | Array = array("q")

    @classmethod
    def of(cls, block: Array, ends: Array) -> Texts:
        """Those that `arrays` gave."""
        texts = cls()
        texts._block, texts._ends = block, ends
        return texts

    def arrays(self) -> tuple[Array, Array]:
        """The bytes, and where each text ends. Not to be appended to while they are in use."""
        return np.frombuffer(self._block, np.uint8), np.frombuffer(self._ends, np.int64)

    def append(self, text: str) -> None:
        """One more."""
        assert isinstance(self._block, bytearray)
        assert isinstance(self._ends, array)
        self._block += text.encode(*_CODEC)
        self._ends.append(len(self._block))

    def __len__(self) -> int:
        return len(self._ends)

    def _at(self, at: int) -> str:
        start = int(self._ends[at - 1]) if at else 0
        return bytes(self._block[start : int(self._ends[at])]).decode(*_CODEC)

    def __iter__(self) -> Iterator[str]:
        start = 0
        for at in range(0, len(self), _ITER):
            for end in self._ends[at : at + _ITER].tolist():
                yield bytes(self._block[start:end]).decode(*_CODEC)
                start = end


class Names(_Packed):
    """Names of files in their order. A slice is a list."""

    def __init__(self) -> None:
        self._files, self._folders = Texts(), Texts()
        self._firsts: array[int] | Array = array("q")
        self._folder: str | None = None

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Names:
        """Those that `arrays` gave."""
        names = cls()
        block, ends, folders, folder_ends, names._firsts = arrays
        names._files, names._folders = Texts.of(block, ends), Texts.of(folders, folder_ends)
        return names

    def arrays(self) -> tuple[Array, ...]:
        """All that there is, for `of`. The same for the same names."""
        firsts = np.frombuffer(self._firsts, np.int64)
        return (*self._files.arrays(), *self._folders.arrays(), firsts)

    def append(self, name: str) -> None:
        """One more."""
        assert isinstance(self._firsts, array)
        at = name.rfind("/") + 1
        if self._folder != name[:at]:
            self._folder = name[:at]
            self._folders.append(self._folder)
            self._firsts.append(len(self._files))
        self._files.append(name[at:])

    def __len__(self) -> int:
        return len(self._files)

    def _at(self, at: int) -> str:
        firsts = np.frombuffer(self._firsts, np.int64)
        return self._folders[int(np.searchsorted(firsts, at, "right")) - 1] + self._files[at]

    def __iter__(self) -> Iterator[str]:
        files = iter(self._files)
        bounds = [*self._firsts, len(self)]
        for number, folder in enumerate(self._folders):
            for _ in range(bounds[number], bounds[number + 1]):
                yield folder + next(files)

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, Sequence) and len(other) == len(self)
        return same and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
