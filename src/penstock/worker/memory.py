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
            self._mappings[client, number] = segment.Mapping(descriptor, size)
        except OSError:
            self._unmappable.add((client, number))
        finally:
            os.close(descriptor)

    def unmap(self, client: int, number: int) -> None:
        """Forget a segment: the engine knows that no batch uses it."""
        self._unmappable.discard((client, number))
        mapping = self._mappings.pop((client, number), None)
        if mapping is not None:
            mapping.close()

    def view(self, client: int, number: int) -> memoryview:
        """A segment's bytes."""
        if (client, number) in self._unmappable:
            return _NOTHING
        return self._mappings[client, number].view

    def __len__(self) -> int:
        return len(self._mappings)
