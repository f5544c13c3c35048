"""`@in_tensorflow`: the test's body runs in a process that has TensorFlow.

So the test runner stays without it, and without its threads, and what takes seconds to import is
imported once. A test's arguments must be picklable, as `tmp_path` is. What the body raises is
raised in the test.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

_LIMIT = 55.0
_pool: ProcessPoolExecutor | None = None


def in_tensorflow(test: Callable[..., None]) -> Callable[..., None]:
    """A decorator for tests, and for fixtures that make files."""

    @functools.wraps(test)
    def there(**arguments: Any) -> Any:
        return call(test.__module__, test.__qualname__, arguments)

    return there


def call(module: str, name: str, arguments: dict[str, Any]) -> Any:
    """Call a function of a test module over there."""
    global _pool
    if _pool is None:
        _pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare)
    try:
        return _pool.submit(_called, module, name, arguments).result(_LIMIT)
    except TimeoutError:
        end()
        raise


def end() -> None:
    """End the process; the next call starts another one."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        for process in pool._processes.values():
            process.kill()
        pool.shutdown()


def _prepare() -> None:
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _called(module: str, name: str, arguments: dict[str, Any]) -> Any:
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return getattr(function, "__wrapped__", function)(**arguments)
