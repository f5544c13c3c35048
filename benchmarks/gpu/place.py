"""The folder that all processes of a run share: the network's file, images, caches and logs.

A temporary one goes with the run. One that is named stays: the next command finds there the
network, what XLA compiled, and what Penstock found out.
"""

import os
from pathlib import Path

from benchmarks.core.processes import Workspace

_XLA, _PENSTOCK = "xla", "penstock"


class Place(Workspace):
    """A workspace whose children keep caches in it, and see no GPU where none is wanted."""

    def __init__(self, kept: Path | None, cpu: bool) -> None:
        super().__init__()
        self.files = self.folder
        self.cpu = cpu
        if kept is not None:
            self.files = kept.resolve()
            self.files.mkdir(parents=True, exist_ok=True)

    @property
    def has_caches(self) -> bool:
        """Whether anything was compiled or found out by an earlier part or command."""
        return any((self.files / cache).exists() for cache in (_XLA, _PENSTOCK))

    def environment(self) -> dict[str, str]:
        flags = [os.environ.get("TF_XLA_FLAGS", "")]
        flags.append(f"--tf_xla_persistent_cache_directory={self.files / _XLA}")
        more = {
            "TF_XLA_FLAGS": " ".join(filter(None, flags)),
            "PENSTOCK_CACHE": str(self.files / _PENSTOCK),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        }
        if self.cpu:
            more["CUDA_VISIBLE_DEVICES"] = ""
        return super().environment() | more
