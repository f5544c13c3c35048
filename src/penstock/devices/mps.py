"""Whether CUDA's multi-process service (MPS) runs: then processes share a card at the same time.

Without it they take turns, each with the whole card, and a second worker brings nothing. The
control daemon is found through its pipe, which containers share, else among the processes.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

_DAEMON = b"nvidia-cuda-mps-control"


def running(processes: Path = Path("/proc")) -> bool:
    """Whether a control daemon answers for this environment."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    return _answers(folder / "control") or _is_listed(folder, processes)


def _answers(control: Path) -> bool:
    try:
        mode = control.stat().st_mode
        if stat.S_ISFIFO(mode):
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))  # refused if nobody reads it
            return True
        if stat.S_ISSOCK(mode):
            return _listens(control)
    except OSError:
        pass
    return False


def _listens(control: Path) -> bool:
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as sock:
            try:
                sock.connect(str(control))
            except BlockingIOError:
                return True  # it listens, and has a queue
            except OSError:
                continue
            return True
    return False


def _is_listed(folder: Path, processes: Path) -> bool:
    """Whether the daemon that once made this folder still runs."""
    try:
        pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
        return _DAEMON in (processes / str(pid) / "cmdline").read_bytes()
    except (OSError, ValueError):
        return False
