"""The engine's process: `python -m penstock.engine`, started by `Engine` and `penstock up`."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from penstock import journal, launch
from penstock.config import from_json
from penstock.engine.server import Server
from penstock.errors import PenstockError, kind_of
from penstock.model.live import handed_on


def main(arguments: list[str]) -> int:
    """Read the settings and be an engine."""
    settings, descriptors = launch.read_settings(arguments)
    models, config, extra = from_json(settings)
    journal.begin(f"engine {config.name}")
    status = descriptors.get("status")
    try:
        server = Server(
            models,
            config,
            sys_path=extra["sys_path"],
            archives=handed_on(descriptors),
            owner=descriptors.get("owner"),
            status=status,
        )
        return server.run()
    except (PenstockError, OSError) as error:
        if status is None:
            raise
        line = {"state": "failed", "kind": kind_of(error), "text": str(error)}
        with contextlib.suppress(OSError):
            os.write(status, json.dumps(line).encode() + b"\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
