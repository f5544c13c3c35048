"""Clients' segments, as this worker has mapped them. The engine says when; nothing is guessed."""

from __future__ import annotations

import os

from penstock.transport import segment


class MappedSegments:
    """Every segment that a batch may name, by client and number."""

    def __init__(self) -> None:
        self._mappings: dict[tuple[int, int], segment.Mapping] = {}

    def map(self, client: int, number: int, size: int, descriptor: int) -> None:
        """Map a segment; the descriptor is closed, the mapping keeps the memory."""
        try:
            segment.verify(descriptor, size)
            self._mappings[client, number] = segment.Mapping(descriptor, size)
        finally:
            os.close(descriptor)

    def unmap(self, client: int, number: int) -> None:
        """Forget a segment: the engine knows that no batch uses it."""
        self._mappings.pop((client, number)).close()

    def view(self, client: int, number: int) -> memoryview:
        """A segment's bytes."""
        return self._mappings[client, number].view

    def __len__(self) -> int:
        return len(self._mappings)
