"""The process that measures: `python -m penstock.tuning`, started by `tune`, thrown away after.

It loads the model as a worker would, only more thoroughly, and writes what it found where workers
look. It ends with its caller.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
from typing import IO, Any

from penstock import launch
from penstock.config import Model, from_json
from penstock.devices.limit import limit_tensorflow
from penstock.errors import DeviceMemoryError, Kind, ModelLoadError
from penstock.model import xla_cache
from penstock.model.load import load
from penstock.tuning.plan import plan_of


def main(arguments: list[str]) -> None:
    """Measure, tell, end."""
    began = time.monotonic()
    settings, descriptors = launch.read_settings(arguments)
    (model,), _, extra = from_json(settings)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _follow(descriptors["owner"])
    sys.path[:0] = [place for place in extra["sys_path"] if place not in sys.path]
    os.environ.update(extra["environment"])
    os.environ["PENSTOCK_WORKER"] = "0"
    limit_tensorflow()
    xla_cache.prepare()
    with os.fdopen(descriptors["news"], "w") as news:
        try:
            _tell(news, **_measure(model, extra["device"], began, news))
        except (ModelLoadError, DeviceMemoryError) as error:
            kind = Kind.DEVICE_MEMORY if isinstance(error, DeviceMemoryError) else Kind.MODEL_LOAD
            _tell(news, error=str(error), kind=kind)
    os._exit(0)  # taking TensorFlow apart takes seconds


def _measure(model: Model, device: str, began: float, news: IO[str]) -> dict[str, Any]:
    _tell(news, say="loading TensorFlow")
    runnable: Any = load(model, thorough=True, tell=lambda text: _tell(news, say=text))
    if not runnable.device:
        raise ModelLoadError(
            f"{model.source} is a plain function: there is nothing to compile, and how many rows "
            "it should get at a time only you know (max_batch)"
        )
    runnable.keep()
    plan = plan_of(
        model.name, str(model.source), device, runnable.facts(), time.monotonic() - began
    )
    return {"plan": plan.to_json(), "findings": runnable.remembered_at}


def _tell(news: IO[str], **what: Any) -> None:
    news.write(json.dumps(what) + "\n")
    news.flush()


def _follow(owner: int) -> None:
    """End as soon as the caller has."""

    def watch() -> None:
        poll = select.poll()
        poll.register(owner, select.POLLIN)
        poll.poll()
        launch.kill_descendants(os.getpid())
        os._exit(1)

    threading.Thread(target=watch, name="penstock-life", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv)
