"""Answers in segments of their own: their descriptors, which all clients and workers share.

The engine has one for each from the worker's word until it was passed on. A client that does not
read leaves its own here: as many as its requests may bring. So that those of many, or of calls with
many rows, never leave the engine without a descriptor for a worker's next answer, there is a limit
to all together. Beyond it, the client that has most of them loses its connection; if it is not one
that does not read, there are only too many at once, and the next answer is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engine.clients import ClientState
from penstock.engine.effects import Effects
from penstock.engine.requests import PartRecord
from penstock.engine.workers import Batch


class Apart:
    """Counts them, in all and for each client, and closes them."""

    def __init__(self, effects: Effects, clients: Mapping[int, ClientState], most: int) -> None:
        self._effects = effects
        self._clients = clients
        self._most = most
        self._count = 0

    def take(self, client: ClientState) -> bool:
        """A worker has sent one; returns whether it is kept, to be closed by `close`."""
        if client.gone:
            return False
        if self._count >= self._most:
            greediest = max(self._clients.values(), key=lambda each: each.apart)
            if not greediest.behind:
                return False
            self._effects.disconnect(
                greediest.number,
                f"{greediest.apart} answers in segments of their own wait for it; "
                f"the engine keeps {self._most} for all of its clients (ulimit -n)",
            )
        client.apart += 1
        self._count += 1
        return True

    def close(self, client: ClientState, part: PartRecord) -> None:
        """This one was passed on, or is not wanted."""
        if part.descriptor >= 0:
            client.apart -= 1
            self._count -= 1
            self._effects.close(part.descriptor)

    def close_those_of(self, batch: Batch, client: ClientState | None = None) -> None:
        """What a batch has brought is not wanted: that of one client, or all of it."""
        left = []
        for item, outcome in batch.outcomes:
            owner = batch.jobs[item].owner.client
            if isinstance(outcome, PartRecord) and client in (None, owner):
                self.close(owner, outcome)
            else:
                left.append((item, outcome))
        batch.outcomes = left
