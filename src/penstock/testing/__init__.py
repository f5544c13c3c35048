"""Fakes and faults that the project's tests and its users' tests share; see `docs/testing.md`.

Without processes, for tests of code that uses a client:

- `LocalEngine`: an engine in this process, with a client's face and the real batching and errors
- `ManualClock`: the time that its deadlines go by, moved by hand
- `LocalEngine.faults` (`Faults`): requests that fail, workers that are lost, time that passes

With processes, for tests of the whole:

- `running`: a real engine in a temporary folder; `wait_healthy`
- `kill_worker`, `stop_worker`, `continue_worker`, `kill_engine`: signals to its processes
- `penstock.testing.models`: functions that a worker can import, well-behaved and otherwise
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.clock import ManualClock
    from penstock.testing.engines import running, wait_healthy
    from penstock.testing.faults import Faults
    from penstock.testing.inline import LocalBatch
    from penstock.testing.local import LocalEngine
    from penstock.testing.sabotage import continue_worker, kill_engine, kill_worker, stop_worker

__all__ = [
    "Faults",
    "LocalBatch",
    "LocalEngine",
    "ManualClock",
    "continue_worker",
    "kill_engine",
    "kill_worker",
    "running",
    "stop_worker",
    "wait_healthy",
]

# Late, as in `penstock`: a worker that runs one of our models needs nothing of the rest.
_HOMES = {
    "Faults": "faults",
    "LocalBatch": "inline",
    "LocalEngine": "local",
    "ManualClock": "clock",
    "continue_worker": "sabotage",
    "kill_engine": "sabotage",
    "kill_worker": "sabotage",
    "running": "engines",
    "stop_worker": "sabotage",
    "wait_healthy": "engines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
