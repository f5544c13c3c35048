"""Processes that are forked from one server, which has imported TensorFlow and computed nothing
with it: each starts in a moment, and is a process like any other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver

FORKED = multiprocessing.get_context("forkserver")
_LOADED = ["tensorflow", "keras", "penstock.train.running"]


@contextlib.contextmanager
def tensorflow_imported() -> Iterator[None]:
    """Where processes are forked from."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._stop()  # one that others may have left, without TensorFlow
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "OPENBLAS_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    forkserver.set_forkserver_preload(_LOADED)
    try:
        forkserver.ensure_running()
        yield
    finally:
        server._stop()
        forkserver.set_forkserver_preload([])
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
