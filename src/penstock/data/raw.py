"""Whole files as rows: a row is a file's bytes, its key is the file's name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.data.chunk import Array, Chunk, Fault
from penstock.data.files import read_many
from penstock.data.listing import Listing
from penstock.data.source import Source, bounds, chunk_of, digest
from penstock.errors import InputError, PenstockError
from penstock.spec import STRING, Signature, TensorSpec


class RawFiles(Source):
    """Files, unread. One that may not be read is a failed row; one that is gone is an error,
    because then the input is not what it was when it was listed."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing

    @property
    def rows(self) -> int:
        """As many as files."""
        return len(self.listing)

    @property
    def signature(self) -> Signature:
        """Bytes."""
        return (TensorSpec(STRING),)

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Read these files."""
        start, stop = bounds(start, stop, self.rows)
        faults: dict[int, Fault] = {}
        data = np.empty(stop - start, object)
        paths = [self.listing.path(row) for row in range(start, stop)]
        for row, found in enumerate(read_many(paths)):
            if isinstance(found, (PermissionError, IsADirectoryError)):
                faults[row] = Fault("unreadable", found.strerror or str(found))
                found = b""
            elif isinstance(found, FileNotFoundError):
                raise InputError(f"{paths[row]} was there when it was listed and is gone")
            elif isinstance(found, (OSError, PenstockError)):
                raise found
            elif isinstance(found, Exception):
                text = f"{type(found).__name__}: {found}"
                raise InputError(f"{paths[row]} cannot be read ({text})") from found
            data[row] = found
        keys = np.empty(stop - start, object)
        keys[:] = self.listing.names[start:stop]
        return chunk_of(start, {"": data}, keys, faults, out)

    def sizes(self, start: int, stop: int) -> Array:
        """The files'."""
        return self.listing.sizes[start:stop]

    def costs(self) -> Array:
        """The files' sizes."""
        return self.listing.sizes

    def unchanged(self) -> bool:
        """The files are."""
        return self.listing.unchanged()

    def fingerprint(self) -> str:
        """Names, sizes and times."""
        return digest("raw", self.listing.fingerprint())
