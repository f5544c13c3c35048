"""TensorFlow in a worker says at once that a GPU has too little memory, and does not try for long.

It tries for ten seconds before it says so. In a worker nothing is gained by that: a batch that does
not fit is run in parts. It must be told before it starts its GPUs, which a model's own code may do:
so it is told when it is imported, whoever does that (`watching`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from penstock.model.watching import watch

_CONTEXT = "tensorflow.python.eager.context"
_told: list[str] = []


def fail_at_once() -> None:
    """In a worker, before a model is loaded; elsewhere the process is the user's to arrange."""
    if "PENSTOCK_WORKER" not in os.environ or _told:
        return
    _told.append(_CONTEXT)
    context = sys.modules.get(_CONTEXT)
    if context is None:
        watch(_CONTEXT, _loaded)
    else:
        _tell(context)


def _loaded(load: Callable[[], None], context: Any) -> None:
    load()
    _tell(context)


def _tell(context: Any) -> None:
    of_tensorflow = getattr(context.Context, "_compute_gpu_options", None)
    if of_tensorflow is None:  # it is TensorFlow's own affair, and may be called something else
        return

    def options(self: Any) -> Any:
        made = of_tensorflow(self)
        made.experimental.disallow_retry_on_allocation_failure = True
        return made

    context.Context._compute_gpu_options = options
