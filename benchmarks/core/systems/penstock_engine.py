"""Penstock: an engine in a process of its own, clients through `penstock.connect`.

    python -m benchmarks.core.systems.penstock_engine NAME SETTINGS

serves until its input ends. It says {"pid": the engine's} when it is ready.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import ClassVar

from benchmarks.core.processes import Child, Workspace, children
from benchmarks.core.systems.interface import Load, Settings

_READY_WITHIN = 60.0
_serial = count()


class PenstockEngine:
    """Penstock: a sweep over the largest batch, and one setting for what is not compared."""

    name = "penstock"
    title = "Penstock"
    usual: ClassVar[Settings] = {"max_batch": 32}

    def sweep(self, quick: bool) -> list[Settings]:
        return [{"max_batch": rows} for rows in ((16, 32) if quick else (8, 16, 32, 64))]

    @contextlib.contextmanager
    def serve(self, settings: Settings, workspace: Workspace) -> Iterator[str]:
        with self.serve_process(settings, workspace) as (endpoint, _):
            yield endpoint

    @contextlib.contextmanager
    def serve_process(self, settings: Settings, workspace: Workspace) -> Iterator[tuple[str, int]]:
        """Like `serve`, and tells the engine's process too."""
        endpoint = f"bench-core-{os.getpid()}-{next(_serial)}"
        command = [__name__, endpoint, json.dumps(settings)]
        with children([command], workspace) as [server]:
            yield endpoint, _engine_pid(server)

    def client_commands(self, endpoint: str, load: Load) -> list[list[str]]:
        return [
            ["benchmarks.core.client", "penstock", endpoint, str(number), str(load.outstanding)]
            for number in range(load.clients)
        ]


def _engine_pid(server: Child) -> int:
    return int(server.hear(time.monotonic() + _READY_WITHIN)["pid"])


def main() -> None:
    import penstock

    name, settings = sys.argv[1], json.loads(sys.argv[2])
    with penstock.Engine("benchmarks.core.work:answer", name=name, **settings) as engine:
        print(json.dumps({"pid": engine.statistics().pid}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
