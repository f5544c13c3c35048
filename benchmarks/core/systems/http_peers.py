"""The systems that are reached over HTTP, all driven by the same client.

Mosec and LitServe are peers. The bare server is no peer: it shows how fast the driver can be.
A server process is `python -m MODULE SETTINGS PORT`; it is ready when it answers a row rightly.
"""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.core.processes import Child, Workspace, children
from benchmarks.core.systems.interface import Load, Settings
from benchmarks.core.workload import Rows, WrongAnswer

_READY_WITHIN = 60.0


@dataclass(frozen=True)
class HttpPeer:
    """A server on 127.0.0.1 that takes a row as the body of a POST."""

    name: str
    title: str
    module: str
    path: str
    settings: tuple[Settings, ...]
    quick_settings: tuple[Settings, ...]

    def sweep(self, quick: bool) -> list[Settings]:
        return list(self.quick_settings if quick else self.settings)

    @contextlib.contextmanager
    def serve(self, settings: Settings, workspace: Workspace) -> Iterator[str]:
        port = _free_port()
        with children([[self.module, json.dumps(settings), str(port)]], workspace) as [server]:
            _wait_until_answered(server, port, self.path)
            yield f"http://127.0.0.1:{port}{self.path}"

    def client_commands(self, endpoint: str, load: Load) -> list[list[str]]:
        return [
            ["benchmarks.core.client", "http", endpoint, str(number), str(load.outstanding)]
            for number in range(load.clients)
        ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_answered(server: Child, port: int, path: str) -> None:
    rows = Rows(client=1 << 20, outstanding=1)
    deadline = time.monotonic() + _READY_WITHIN
    while time.monotonic() < deadline:
        if not server.alive():
            raise server.failure("ended")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        not_yet = contextlib.suppress(OSError, http.client.HTTPException)
        with contextlib.closing(connection), not_yet:
            header = {"Content-Type": "application/octet-stream"}
            connection.request("POST", path, rows.fresh(0).tobytes(), header)
            response = connection.getresponse()
            body = response.read()
            if response.status == 200:
                _check(server, rows, body)
                return
        time.sleep(0.05)
    raise server.failure("did not answer in time")


def _check(server: Child, rows: Rows, body: bytes) -> None:
    try:
        rows.check(0, np.frombuffer(body, np.uint64))
    except (WrongAnswer, ValueError) as error:
        raise server.failure(f"answered wrongly: {error}") from error


def _mosec(max_batch: int, max_wait_ms: int, workers: int) -> Settings:
    return {"max_batch": max_batch, "max_wait_ms": max_wait_ms, "workers": workers}


def _litserve(
    max_batch: int, batch_timeout_s: float, workers: int, api_servers: int, fast_queue: bool
) -> Settings:
    return {
        "max_batch": max_batch,
        "batch_timeout_s": batch_timeout_s,
        "workers": workers,
        "api_servers": api_servers,
        "fast_queue": fast_queue,
    }


MOSEC = HttpPeer(
    name="mosec",
    title="Mosec",
    module="benchmarks.core.systems.mosec_server",
    path="/inference",
    settings=(
        _mosec(1, 1, 1),
        _mosec(1, 1, 2),
        *(
            _mosec(batch, wait, workers)
            for batch in (8, 16, 32)
            for wait in (1, 4)
            for workers in (1, 2)
        ),
    ),
    quick_settings=(_mosec(1, 1, 1), _mosec(16, 1, 1)),
)

LITSERVE = HttpPeer(
    name="litserve",
    title="LitServe",
    module="benchmarks.core.systems.litserve_server",
    path="/predict",
    settings=(
        _litserve(1, 0.0, 1, 1, False),
        _litserve(1, 0.0, 1, 1, True),
        _litserve(1, 0.0, 2, 2, True),
        _litserve(8, 0.001, 1, 1, False),
        _litserve(8, 0.001, 1, 1, True),
        _litserve(8, 0.001, 1, 2, True),
        _litserve(8, 0.001, 2, 2, True),
        _litserve(32, 0.0, 1, 1, True),
        _litserve(32, 0.001, 1, 2, False),
        _litserve(32, 0.001, 1, 2, True),
        _litserve(32, 0.005, 1, 1, True),
        _litserve(32, 0.005, 2, 2, True),
    ),
    quick_settings=(_litserve(1, 0.0, 1, 1, True), _litserve(8, 0.001, 1, 2, True)),
)

BARE = HttpPeer(
    name="bare_http",
    title="HTTP driver's ceiling",
    module="benchmarks.core.systems.bare_server",
    path="/",
    settings=({},),
    quick_settings=({},),
)
