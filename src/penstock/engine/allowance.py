"""How many of the engine's descriptors its clients may take.

A connection takes two (a socket and a pidfd), each segment one. Without a limit, one process that
connects too often would take them all: nobody else could connect or bring memory, and no worker
could be started in place of one that died. So connections may take half, those of one process half
of that, and some descriptors are kept from all clients. A new descriptor has the lowest number that
is free: one that is beyond the clients' part says that this is full.
"""

from __future__ import annotations

_RESERVE = 64  # or a quarter, if that is less


class Allowance:
    """What clients may take of so many descriptors."""

    def __init__(self, descriptors: int) -> None:
        self._all = descriptors
        self._for_clients = descriptors - min(_RESERVE, descriptors // 4)
        self._connections = max(self._for_clients // 4, 1)
        self._of_one = max(self._connections // 2, 1)

    def connection(self, taken: int, of_same: int) -> str:
        """Why there can be no connection beside so many, of which the same process has some; "" if
        there can."""
        if taken >= self._connections:
            return f"it has {taken} connections, as many as it may have {self._limit}"
        if of_same >= self._of_one:
            return f"this process has {of_same} connections, as many as one may have {self._limit}"
        return ""

    def descriptor(self, number: int) -> str:
        """Why a client may not take this new descriptor; "" if it may."""
        if number < self._for_clients:
            return ""
        return f"it has no descriptor left for its clients {self._limit}"

    @property
    def _limit(self) -> str:
        return f"(it may open {self._all} files: ulimit -n where it was started)"
