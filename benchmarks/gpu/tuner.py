"""The process that tunes: `penstock.tune` with nothing in any cache, and once more after it.

    python -m benchmarks.gpu.tuner FILE SETTINGS DEVICE [anew]

SETTINGS are those of `penstock.Model`, as JSON; DEVICE may be empty. With "anew", caches that go
with this process; else those of the run, which have nothing in them yet. Out, twice: {"seconds": …,
"plan": …}; or {"refused": the error's name, "text": its text}, and that was all.
"""

import contextlib
import json
import os
import sys
import tempfile
import time

import penstock
from benchmarks.core.client import say


def main() -> None:
    file, settings, device, *anew = sys.argv[1:]
    with contextlib.ExitStack() as stack:
        if anew:
            caches = stack.enter_context(tempfile.TemporaryDirectory())
            os.environ["PENSTOCK_CACHE"] = caches
            os.environ.pop("TF_XLA_FLAGS", None)  # it names a folder with programs of other parts
        for _ in range(2):
            began = time.monotonic()
            try:
                plan = penstock.tune(file, device=device or None, **json.loads(settings))
            except penstock.errors.PenstockError as error:
                say({"refused": type(error).__name__, "text": str(error)})
                return
            say({"seconds": round(time.monotonic() - began, 2), "plan": plan.to_json()})


if __name__ == "__main__":
    main()
