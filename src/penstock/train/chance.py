"""Keras' global random seed, of which layers draw that have none of their own.

`keras.random.normal(shape)` in a layer draws of one generator that Keras makes when it is first
asked, in the thread that asks. A replica is such a thread: what it has drawn, nobody could keep. So
a run has its generator from the beginning: with one device that of the thread, as in Keras' `fit`;
else one that is made in the strategy's scope, of which all replicas draw (`weighing` sets them
apart). It is kept in checkpoints, and put back after a step that failed, as seeds of layers are.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

_ASKED = "global_seed_generator"  # what Keras asks for it


class Chance:
    """The generator of a run; made in the scope of its strategy. `alone`: there is one device."""

    def __init__(self, alone: bool) -> None:
        self._home: Any = importlib.import_module("keras.src.random.seed_generator")
        self._alone = alone
        self._seeds = getattr(self._home, _ASKED)() if alone else self._home.SeedGenerator()

    @property
    def state(self) -> Any:
        """The variable."""
        return self._seeds.state

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """While this lasts, all threads draw of it."""
        if self._alone:
            yield
            return
        before = getattr(self._home, _ASKED)
        setattr(self._home, _ASKED, lambda: self._seeds)
        try:
            yield
        finally:
            setattr(self._home, _ASKED, before)
