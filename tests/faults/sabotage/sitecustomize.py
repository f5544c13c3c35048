"""Faults that are made on purpose in an engine, for tests that must see them.

`broken` (in `tests/faults/broken.py`) puts this folder first on the path where Python looks for
modules, and names a fault: every Python that is started then runs this file first, and where that
is an engine, it has the fault. There is nothing of this in Penstock itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def lose_answers(every: int) -> None:
    """One answer in so many is never sent, though the engine thinks it was."""
    from penstock.engine.delivery import Delivery

    answered, flush = Delivery.answered, Delivery.flush
    sent = 0

    def kept(numbers):
        nonlocal sent
        first, sent = sent, sent + len(numbers)
        return [item for number, item in enumerate(numbers, first + 1) if number % every]

    def lossy_answered(self, client, numbers, layout) -> None:
        if some := kept(numbers):
            answered(self, client, some, layout)

    def lossy_flush(self) -> None:
        for client in self._gathered:
            client.done[:] = kept(client.done)
        flush(self)

    Delivery.answered, Delivery.flush = lossy_answered, lossy_flush


def leak(size: int) -> None:
    """So many bytes of each connection stay for good."""
    from penstock.engine.core import Core

    connected = Core.connected
    kept: list[bytes] = []

    def leaky(self, number: int, pid: int) -> None:
        kept.append(os.urandom(size))
        connected(self, number, pid)

    Core.connected = leaky


_FAULTS: dict[str, Callable[[int], None]] = {"lose_answers": lose_answers, "leak": leak}

if "penstock.engine" in sys.orig_argv:
    _name, _how_much = os.environ["PENSTOCK_TEST_FAULT"].split()
    _FAULTS[_name](int(_how_much))
