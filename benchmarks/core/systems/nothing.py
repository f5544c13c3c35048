"""No system at all: clients that make, copy and check their rows, and then wake the next client.

Clients stand in rings, one for each core. Whoever is woken does for all its rows what every client
must do, whatever serves it, and passes the turn on. What is lost here from few clients to many is
lost to processes that drive each other out of the caches, before any system has done anything.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from itertools import count

from benchmarks.core.processes import Workspace
from benchmarks.core.systems.interface import Load, Settings

_serial = count()


class Nothing:
    """Rings of clients. The endpoint is a folder, with a pipe for each client to be woken by."""

    name = "nothing"
    title = "no system"

    def sweep(self, quick: bool) -> list[Settings]:
        return [{}]

    @contextlib.contextmanager
    def serve(self, settings: Settings, workspace: Workspace) -> Iterator[str]:
        yield tempfile.mkdtemp(prefix=f"ring-{next(_serial)}-", dir=workspace.folder)

    def client_commands(self, endpoint: str, load: Load) -> list[list[str]]:
        for number in range(load.clients):
            os.mkfifo(os.path.join(endpoint, str(number)))
        each = str(load.outstanding)
        return [
            ["benchmarks.core.client", "nothing", endpoint, str(number), each]
            for number in range(load.clients)
        ]
