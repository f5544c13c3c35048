"""One wait for all that can happen to the supervisor: output, exits, signals, the owner's death."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Any

from penstock import launch

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watch:
    """Descriptors and what to call when they can be read. `orders` counts requests to end.

    The main thread's; signals are taken over as long as it is there (`close`).
    """

    def __init__(self, owner: int) -> None:
        self.orders = 0
        self._selector = selectors.DefaultSelector()
        self._ours, theirs = socket.socketpair()
        self._theirs = theirs
        for end in (self._ours, theirs):
            end.setblocking(False)
        for number in {signal.SIGTERM, *launch.heeded(_SIGNALS)}:  # the first is the owner's word
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self.add(self._ours, self._signalled)
        self._owner = owner
        self.add(owner, self._owner_died)

    def add(self, what: Any, then: Callable[[], None]) -> None:
        """Call this whenever the descriptor can be read."""
        self._selector.register(what, selectors.EVENT_READ, then)

    def remove(self, what: Any) -> None:
        """No longer. May be called again."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(what)

    def wait(self, seconds: float) -> None:
        """Until something has happened, so long at most."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fd in self._selector.get_map():  # an earlier call may have removed it
                key.data()

    def close(self) -> None:
        """Give the signals back."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._ours.close()
        self._theirs.close()

    def _signalled(self) -> None:
        self.orders += sum(number in _SIGNALS for number in self._ours.recv(64))

    def _owner_died(self) -> None:
        self.remove(self._owner)
        os.close(self._owner)
        self.orders += 1
