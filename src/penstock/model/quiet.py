"""TensorFlow in a worker, without its chatter and its litter: one place, before it is imported.

`quieten` sets what TensorFlow reads from the environment, unless the user has set it, and watches
for the import of `tensorflow`, whoever does it: some of what its libraries write to the standard
error while they are loaded (that oneDNN is on) no setting turns off. With TF_CPP_MIN_LOG_LEVEL=0
everything is shown as it comes. `tidy`: the code that AutoGraph makes leaves no files behind.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.model.haste import load_for_good
from penstock.model.watching import watch

_AUTOGRAPH = "tensorflow.python.autograph.pyct.loader"
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_CHATTER = (
    b"All log messages before absl::InitializeLog()",
    b"oneDNN custom operations are on",
    b"This TensorFlow binary is optimized to use available CPU",
    b"To enable the following instructions:",
)


def quieten() -> None:
    """In a worker, before a model is loaded; elsewhere the process is the user's to arrange."""
    if "PENSTOCK_WORKER" not in os.environ:
        return
    # Of a file that is replaced within a second, Python would load what it compiled of the old one.
    sys.dont_write_bytecode = True
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # a model's file suits any backend
    if os.environ.setdefault(_LEVEL, "2") != "0" and "tensorflow" not in sys.modules:
        watch("tensorflow", _quietly)
    tidy()


def tidy() -> None:
    """Let no files of AutoGraph's outlive this process, also when it is killed."""
    if _AUTOGRAPH not in sys.modules:
        watch(_AUTOGRAPH, _tidily)


def _quietly(load: Callable[[], None], module: ModuleType) -> None:
    with without_chatter():
        load_for_good(load)
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _tidily(load: Callable[[], None], module: ModuleType) -> None:
    """AutoGraph's code is loaded from files, which TensorFlow removes when the process exits.

    One that is killed would leave them, so they go as soon as they are loaded, and are not written
    again compiled. Their text is kept where Python looks for it, as of modules that have no file
    (without a time).
    """
    load()
    original: Callable[..., tuple[ModuleType, str]] | None = getattr(module, "load_source", None)
    if original is None:  # another TensorFlow: they stay until it exits
        return

    def load_source(*arguments: Any, **options: Any) -> tuple[ModuleType, str]:
        compiled, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            loaded = original(*arguments, **options)
        finally:
            sys.dont_write_bytecode = compiled
        with contextlib.suppress(OSError):
            text = Path(loaded[1]).read_text("utf-8")
            linecache.cache[loaded[1]] = (len(text), None, text.splitlines(True), loaded[1])
            os.unlink(loaded[1])
        return loaded

    module.load_source = load_source  # type: ignore[attr-defined]


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """What is written to the standard error comes when this ends, less the known chatter.

    A crash is still told at once, by Python's fault handler.
    """
    kept = os.dup(2)
    memory = os.memfd_create("penstock-stderr", os.MFD_CLOEXEC)
    crashes_told = faulthandler.is_enabled()
    try:
        os.dup2(memory, 2)
        if crashes_told:
            faulthandler.enable(kept)
        yield
    finally:
        os.dup2(kept, 2)
        if crashes_told:
            faulthandler.enable()
        os.lseek(memory, 0, os.SEEK_SET)
        with os.fdopen(memory, "rb") as file, os.fdopen(kept, "wb") as errors:
            errors.writelines(
                line for line in file if not any(chatter in line for chatter in _CHATTER)
            )
