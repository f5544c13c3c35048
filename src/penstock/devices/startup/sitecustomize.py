"""What Python runs first under `penstock run`, which puts this folder on PYTHONPATH.

Holds the promise that the process was started with, limits TensorFlow to it, and then runs the
`sitecustomize` that Python would have found without this one. Loads nothing but `limit.py`, because
the command's Python need not have Penstock.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _limit() -> None:
    name = "penstock_startup.limit"
    path = os.path.join(os.path.dirname(_HERE), "limit.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.limit_tensorflow()
    _hold(os.environ.get(module.CLAIM, ""))


def _hold(claim: str) -> None:
    """Keep the promise in this process and what it becomes (launchers `exec`), not in its forks."""
    number, _, path = claim.partition(":")

    def is_the_promise() -> bool:
        try:
            return os.path.samestat(os.fstat(int(number)), os.stat(path))
        except (OSError, ValueError):
            return False  # not inherited, or released

    def close() -> None:
        if is_the_promise():
            os.close(int(number))

    if claim:
        os.register_at_fork(after_in_child=close)


def _next() -> None:
    elsewhere = [place for place in sys.path if place and os.path.abspath(place) != _HERE]
    sys.path[:] = [place for place in sys.path if not place or os.path.abspath(place) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_limit()
_next()
