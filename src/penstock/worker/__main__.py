"""A worker's process: `python -m penstock.worker`, started by the engine."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import sys
import time
from pathlib import Path

from penstock import journal, launch
from penstock.config import Model, from_json
from penstock.devices.limit import BUFFERS, limit_tensorflow
from penstock.errors import DeviceMemoryError, ModelLoadError
from penstock.model.load import load
from penstock.model.xla_cache import prepare
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.channel import Channel, Closed
from penstock.worker.gpu import devices_for
from penstock.worker.life import follow_engine
from penstock.worker.loop import Worker, tell_failure
from penstock.worker.warmup import Ready

_FAREWELL = 10.0


def main(arguments: list[str]) -> int:
    """Load the models, say so, run batches."""
    settings, descriptors = launch.read_settings(arguments)
    models, config, extra = from_json(settings)
    faulthandler.enable()
    journal.begin(f"worker {extra['index']}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    life = follow_engine(descriptors["engine"], Path(extra["socket"]))
    channel = Channel(socket.socket(fileno=descriptors["channel"]))
    sys.path[:0] = [place for place in extra["sys_path"] if place not in sys.path]
    os.environ["PENSTOCK_WORKER"] = str(extra["index"])
    limit_tensorflow()
    prepare()
    try:
        loaded = [_load(model) for model in models]
        memory, devices = devices_for(
            [ready.runnable for ready in loaded],
            config.pinned_memory,
            int(os.environ.get(BUFFERS) or 0),
        )
    except (ModelLoadError, DeviceMemoryError) as error:
        tell_failure(channel, error)
        channel.close()
        return 1
    try:
        for number, (model, ready) in enumerate(zip(models, loaded, strict=True)):
            runnable = ready.runnable
            most = runnable.max_batch
            card = m.ModelCard(number, most, most, runnable.batched, model.name)
            channel.send(wire.encode(card))
            for side, tensors in enumerate((runnable.spec.inputs, runnable.spec.outputs)):
                if tensors is not None:
                    channel.send(wire.encode(m.CardTensors(number, side, tensors)))
            channel.send(ready.facts(number))
        channel.send(wire.encode(m.Loaded(os.getpid(), len(devices))))
        finished = Worker(channel, loaded, memory, devices).run()
        if not finished or "tensorflow" in sys.modules:
            _leave()
    except Closed:
        life.join(_FAREWELL)  # the engine is gone, or about to be: leave as that thread does
    channel.close()
    return 0


def _load(model: Model) -> Ready:
    began = time.monotonic()
    return Ready(load(model), time.monotonic() - began)


def _leave() -> None:
    """End at once, without taking Python apart.

    That takes seconds where TensorFlow is, and would end under a thread that is deep inside it.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
