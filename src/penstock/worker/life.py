"""Dying with the engine, and leaving nothing behind.

The engine's pidfd says when it is gone, also when it was killed. A thread waits for that, because
the model may be busy. Whatever the model's code has started goes too, and so does the socket file
of a killed engine: so the kernel's parent-death signal is not one that kills, but one that wakes a
worker that was stopped.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

from penstock import launch
from penstock.transport import rendezvous


def follow_engine(engine_pidfd: int, socket_path: Path) -> threading.Thread:
    """From now on, exit as soon as the engine has. Whoever loses the engine first joins this."""
    launch.adopt_orphans()
    launch.wake_with_parent()
    thread = threading.Thread(
        target=_watch, args=(engine_pidfd, socket_path), name="penstock-life", daemon=True
    )
    thread.start()
    return thread


def _watch(engine_pidfd: int, socket_path: Path) -> None:
    poll = select.poll()
    poll.register(engine_pidfd, select.POLLIN)
    poll.poll()
    launch.kill_descendants(os.getpid())
    rendezvous.sweep(socket_path)
    os._exit(0)
