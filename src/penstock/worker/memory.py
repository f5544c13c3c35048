"""Clients' segments, as this worker has mapped them. The engine says when; nothing is guessed."""

from __future__ import annotations

import os

from penstock.transport import segment

_NOTHING = memoryview(b"")


class MappedSegments:
    """Every segment that a batch may name, by client and number."""

    def __init__(self) -> None:
        self._unmappable: set[tuple[int, int]] = set()
        self._mappings: dict[tuple[int, int], segment.Mapping] = {}

    def map(self, client: int, number: int, size: int, descriptor: int) -> None:
        """Map a segment; the descriptor is closed, the mapping keeps the memory.

        The engine has verified it; if it cannot be mapped all the same, its view is empty, and what
        should be read from it cannot be read.
        """
        try:
            mapping = segment.Mapping(descriptor, size)
        except OSError:
            self._unmappable.add((client, number))
        else:
            self._mappings[client, number] = mapping
            self._mapped(mapping)
        finally:
            os.close(descriptor)

    def unmap(self, client: int, number: int) -> None:
        """Forget a segment: the engine knows that no batch uses it."""
        self._unmappable.discard((client, number))
        mapping = self._mappings.pop((client, number), None)
        if mapping is not None:
            self._unmapped(mapping)

    def view(self, client: int, number: int) -> memoryview:
        """A segment's bytes."""
        if (client, number) in self._unmappable:
            return _NOTHING
        return self._mappings[client, number].view

    def address(self, client: int, number: int) -> int:
        """Where a segment begins; 0 if it could not be mapped."""
        if (client, number) in self._unmappable:
            return 0
        return self._mappings[client, number].address

    def __len__(self) -> int:
        return len(self._mappings)

    def _mapped(self, mapping: segment.Mapping) -> None:
        """A segment is new here."""

    def _unmapped(self, mapping: segment.Mapping) -> None:
        """A segment is not used any more."""
        mapping.close()
