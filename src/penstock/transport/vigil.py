"""Staying awake for a moment before going to sleep, for as long as that helps.

Waking a process that sleeps costs more than most of the way of a request. And where the kernel
wakes it on the core of whoever sent the message, the sender waits until it has finished, although
another core is idle. Whoever is awake finds the message by itself. Others that want the core get it
between two looks.

Staying awake in vain takes a core's time from whoever could use it. So after the first time one
goes to sleep at once, then three times, and so on up to `_MOST_SLEEPS`; each time that something
came soon takes back one that was in vain. Thus whoever is seldom lucky mostly sleeps. Whoever gets
the core back only after `_COMPUTED` has given it to somebody who computes, not to somebody who was
about to send: the kernel would have woken a sleeper earlier, and the other was slowed down for
nothing. Then there is no trying for the longest time. Where there is only one core, whoever is to
send something cannot do so meanwhile, and nobody stays awake.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

_MOST_SLEEPS = 127
_COMPUTED = 1_000_000  # nanoseconds

Seen = TypeVar("Seen")


class Vigil:
    """Looks for what comes, up to `nanoseconds` long. For one thread."""

    def __init__(self, nanoseconds: int) -> None:
        self._length = nanoseconds if len(os.sched_getaffinity(0)) > 1 else 0
        self._sleeps = 0  # how often to sleep at once before staying awake is tried again
        self._vain = 0

    def keep(self, look: Callable[[int], list[Seen]], most: int | None = None) -> list[Seen]:
        """What `look(0)` sees first. Nothing: go to sleep, or so many nanoseconds have passed."""
        if self._sleeps or not self._length:
            self._sleeps -= self._sleeps > 0
            return []
        start = time.monotonic_ns()
        end = start + (self._length if most is None else min(most, self._length))
        while not (seen := look(0)) and time.monotonic_ns() < end:
            os.sched_yield()
        took = time.monotonic_ns() - start
        if took >= _COMPUTED:
            self._vain = _MOST_SLEEPS
        elif seen:
            self._vain //= 2
            return seen
        elif took >= self._length:
            self._vain = min(2 * self._vain + 1, _MOST_SLEEPS)
        else:  # there was less time than it takes to tell
            return seen
        self._sleeps = self._vain
        return seen
