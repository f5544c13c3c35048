"""The engine's effects, written down instead of done: what a core wanted, in order."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.transport import wire


class Sent(NamedTuple):
    """A message that the core sent, with its descriptor (-1: none)."""

    peer: int
    record: Any
    descriptor: int


class Recording:
    """`Effects` that happen on paper. Descriptors are numbers that `lend` made up."""

    def __init__(self) -> None:
        self.clients: list[Sent] = []
        self.workers: list[Sent] = []
        self.disconnected: dict[int, str] = {}
        self.started: list[int] = []
        self.killed: list[int] = []
        self.open: set[int] = set()
        self.full: set[int] = set()  # clients that take no more just now
        self._last_descriptor = 1_000

    def lend(self) -> int:
        """A new descriptor, to be handed to the core, which must close it once."""
        self._last_descriptor += 1
        self.open.add(self._last_descriptor)
        return self._last_descriptor

    def to_client(self, client: int, data: bytes, descriptor: int = -1) -> bool:
        """Sent to a client."""
        self.clients.append(self._sent(client, data, descriptor))
        return client not in self.full

    def to_worker(self, worker: int, data: bytes, descriptor: int = -1) -> None:
        """Sent to a worker."""
        self.workers.append(self._sent(worker, data, descriptor))

    def disconnect(self, client: int, reason: str) -> None:
        """A client that broke the protocol."""
        assert reason
        self.disconnected.setdefault(client, reason)

    def warm(self, index: int) -> None:
        pass

    def start_worker(self, index: int) -> int:
        """A worker's process."""
        self.started.append(index)
        return 50_000 + len(self.started)

    def kill_worker(self, index: int) -> None:
        """Its end."""
        self.killed.append(index)

    def close(self, descriptor: int) -> None:
        """Each descriptor is closed once, and only if it was open."""
        assert descriptor in self.open, f"descriptor {descriptor} is not open"
        self.open.remove(descriptor)

    def take_clients(self) -> list[Sent]:
        """What was sent to clients since the last time."""
        sent, self.clients = self.clients, []
        return sent

    def take_workers(self) -> list[Sent]:
        """What was sent to workers since the last time."""
        sent, self.workers = self.workers, []
        return sent

    def _sent(self, peer: int, data: bytes, descriptor: int) -> Sent:
        assert len(data) <= wire.MAX_MESSAGE
        record = wire.decode(data)
        assert descriptor == -1 or descriptor in self.open, f"{record} with a closed descriptor"
        assert (descriptor >= 0) == bool(wire.descriptors_of(record)), record
        return Sent(peer, record, descriptor)
