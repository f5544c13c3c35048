"""What the core lets happen. The server does it; tests write it down."""

from __future__ import annotations

from typing import Protocol


class Effects(Protocol):
    """None of these waits for anything."""

    def to_client(self, client: int, data: bytes, descriptor: int = -1) -> bool:
        """Send a message to a client, perhaps with a descriptor (which stays the core's).

        Returns whether the client takes more just now. If not, `Core.caught_up` follows when it
        does; what is sent before that is kept for it, within limits.
        """

    def to_worker(self, worker: int, data: bytes, descriptor: int = -1) -> None:
        """Send a message to a worker, likewise."""

    def disconnect(self, client: int, reason: str) -> None:
        """Tell a client why, and end its connection."""

    def start_worker(self, index: int) -> int:
        """Start a process for this worker; returns its pid. Raises `OSError`."""

    def kill_worker(self, index: int) -> None:
        """End this worker's process; its exit is reported later."""

    def warm(self, index: int) -> None:
        """This worker has all that it needs of its device."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor that the core has no more use for."""
