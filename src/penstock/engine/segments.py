"""A client's segment in the engine: verified, mapped by workers, used by batches, gone.

::

    LIVE ──drop, or the client is gone──▶ DROPPED ──no batch uses it──▶ GONE

Workers are told to unmap it, and the descriptor is closed, only on the way to GONE. The engine
keeps the descriptor until then because a worker that is started later needs it too.
"""

from __future__ import annotations

import enum


class SegmentState(enum.Enum):
    """Whether new requests may use it, and whether it is still there."""

    LIVE = "live"
    DROPPED = "dropped"
    GONE = "gone"


class Segment:
    """One segment of one client."""

    __slots__ = ("client", "descriptor", "number", "requests", "size", "state", "uses")

    def __init__(self, client: int, number: int, size: int, descriptor: int) -> None:
        self.client = client
        self.number = number
        self.size = size
        self.descriptor = descriptor
        self.state = SegmentState.LIVE
        self.requests = 0  # requests, or series of them, that lie in it and have not ended
        self.uses = 0  # jobs of theirs that a worker has

    def use(self) -> None:
        """A batch in flight reads and writes it."""
        assert self.state is not SegmentState.GONE
        self.uses += 1

    def unuse(self) -> bool:
        """That batch is done; returns whether the segment can go now."""
        assert self.uses > 0
        self.uses -= 1
        return self._may_go()

    def drop(self) -> bool:
        """Its client has no more use for it; returns whether it can go now."""
        if self.state is SegmentState.LIVE:
            self.state = SegmentState.DROPPED
        return self._may_go()

    def _may_go(self) -> bool:
        if self.state is SegmentState.DROPPED and self.uses == 0:
            self.state = SegmentState.GONE
            return True
        return False
