"""The folder that all processes of a run share: the network's file, images, caches and logs.

A temporary one goes with the run. One that is named stays: the next command finds there the
network, what XLA compiled, and what Penstock found out.
"""

import os
from pathlib import Path

from benchmarks.core.processes import Workspace


class Place(Workspace):
    """A workspace whose children keep caches in it, and see no GPU where none is wanted."""

    def __init__(self, kept: Path | None, cpu: bool) -> None:
        super().__init__()
        self.files = self.folder
        self.cpu = cpu
        if kept is not None:
            self.files = kept.resolve()
            self.files.mkdir(parents=True, exist_ok=True)

    def environment(self) -> dict[str, str]:
        flags = [os.environ.get("TF_XLA_FLAGS", "")]
        flags.append(f"--tf_xla_persistent_cache_directory={self.files / 'xla'}")
        more = {
            "TF_XLA_FLAGS": " ".join(filter(None, flags)),
            "PENSTOCK_CACHE": str(self.files / "penstock"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        if self.cpu:
            more["CUDA_VISIBLE_DEVICES"] = ""
        return super().environment() | more
