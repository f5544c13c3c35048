"""What a task runs first: the user's script, with TensorFlow told of its peers in time.

TensorFlow must be told before it computes anything: tensors and data sets from before are lost. A
script cannot know when that is, so the first time that TensorFlow starts its devices, whatever for,
the task takes its place in the cluster before that. A worker of parameter servers goes on from
there: it keeps what `fit` is given, to read it, and serves. Settings that must come first (logical
devices, threads) still can. Scripts that never use TensorFlow notice nothing, and those that have
set up a cluster themselves are left alone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.model.haste import hasten
from penstock.model.quiet import tidy
from penstock.model.watching import watch
from penstock.train.options import waited

_CONTEXT = "tensorflow.python.eager.context"


def main() -> None:
    """Run the script that the arguments name, as Python itself would."""
    script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
    hasten()
    tidy()
    watch(_CONTEXT, _join_first)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        exec(code, module.__dict__)
        _serve_on()
    except Exception as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # without this file's frame
        sys.excepthook(type(error), error, error.__traceback__)
        _leave(1)
    except SystemExit as end:
        status = _status_of(end)
        if status == 0:
            raise
        _leave(status)


def _status_of(end: SystemExit) -> int:
    """As Python has it: a number, or 1 for what is to be told in its place."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    with contextlib.suppress(OSError, ValueError):
        print(end.code, file=sys.stderr)
    return 1


def _leave(status: int) -> NoReturn:
    """At once: Python would wait for the script's threads, and the other tasks for this one."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _join_first(load: Callable[[], None], context: Any) -> None:
    """Before TensorFlow starts its devices, take this task's place. Once, and then no more."""
    load()
    original = context.Context.ensure_initialized
    lock = threading.RLock()
    state = {"joined": False}

    def ensure_initialized(self: Any) -> None:
        if not state["joined"] and not self._initialized:
            with lock:
                if not state["joined"]:
                    state["joined"] = True
                    context.Context.ensure_initialized = original
                    if getattr(self, "_collective_leader", None) in (None, ""):
                        _join()
        original(self)

    context.Context.ensure_initialized = ensure_initialized


def _join() -> None:
    """Only what `penstock.train` trains with; what else TF_CONFIG may be for is the script's."""
    cluster = importlib.import_module("penstock.train.cluster").found()
    if cluster is None or cluster.kind == "single":
        return
    if cluster.kind == "multiworker":
        importlib.import_module("penstock.train.strategies").prepare()
        return
    servers = importlib.import_module("penstock.train.servers")
    if cluster.role == "worker":  # goes on until it knows what it is to read
        servers.listen(cluster)
    else:
        servers.joined(cluster, waited())


def _serve_on() -> None:
    """A worker whose script was over without `fit` is counted on all the same."""
    servers = sys.modules.get("penstock.train.servers")
    if servers is not None and servers.is_listening():
        servers.joined(importlib.import_module("penstock.train.cluster").found(), waited())


if __name__ == "__main__":
    main()
