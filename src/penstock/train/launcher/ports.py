"""Free ports of this machine, for tasks that are about to listen there; and one that is not free.

They are taken below those that Linux hands out to outgoing connections: else a task that starts
early could be given another's port for one of its own connections.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from penstock.errors import ConfigError, TrainingError
from penstock.train.nodes import check_address

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _USUAL = 10_000, 32_768


def free_ports(count: int) -> list[int]:
    """So many different ones. Whoever else looks at the same moment may find the same."""
    candidates = list(range(_FIRST, max(_outgoing(), _FIRST + 1)))
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                return found
            with contextlib.suppress(OSError):
                sock = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                sock.bind(("0.0.0.0", port))
                found.append(port)
    raise ConfigError(f"{count} free ports are needed; {len(found)} were found from {_FIRST} on")


def check_free(address: str) -> None:
    """Refuse an address where this process is to listen and cannot: TensorFlow would not name it.

    A `TrainingError`, for another attempt may find the port free, or be given another one.
    """
    _, port = check_address(address)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        try:
            sock.bind(("0.0.0.0", port))
        except OSError as error:
            raise TrainingError(
                f"this task is to listen at {address}, and cannot: {error.strerror}. End what has "
                f"port {port}, or use others: --nodes or PENSTOCK_TRAIN_PORT say which is a "
                "machine's first, and its tasks have those after it"
            ) from None


def _outgoing() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL
