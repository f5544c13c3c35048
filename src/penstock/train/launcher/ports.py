"""Free ports of this machine, for tasks that are about to listen there.

They are taken below those that Linux hands out to outgoing connections: else a task that starts
early could be given another's port for one of its own connections.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from penstock.errors import ConfigError

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


def _outgoing() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL
