"""What happens to clients in a forked child: they forget their connection and make a new one.

A child has a copy of the parent's socket and of locks in whatever state they were, but not of the
threads. So in the child every session is abandoned (its socket closed, its memory never touched),
and every client gets fresh locks; the next call connects anew.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from penstock.client.answer import renew_callbacks


class Forkable(Protocol):
    """What is told in the child that it was forked."""

    def after_fork_in_child(self) -> None:
        """Forget what belongs to the parent. Other threads are gone; locks may be held."""


_known: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(client: Forkable) -> None:
    """From now on, tell this client when it wakes up in a forked child."""
    _known.add(client)


def _in_child() -> None:
    renew_callbacks()
    for client in list(_known):
        client.after_fork_in_child()


os.register_at_fork(after_in_child=_in_child)
