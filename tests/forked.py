"""Processes that are forked from one server, which has imported TensorFlow and computed nothing
with it: each starts in a moment, and is a process like any other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

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


def script(path: Path, output: Path, **environment: str) -> Any:
    """A process, not yet started, that runs a script as Python does; all it says goes to a file."""
    return FORKED.Process(target=_run, args=(path, output, environment))


def _run(path: Path, output: Path, environment: dict[str, str]) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.environ.update(environment)
    os.chdir(path.parent)
    runpy.run_path(str(path), run_name="__main__")
