"""A process that trains in one way, some steps at a time.

    python -m benchmarks.train.way '{"way": "plain", "network": "resnet50", …}'

It speaks JSON lines. Out, when model and data are made: {"loaded": …}. In: {"go": true}; out, after
the warm-up: {"ready": …}. In, any number of times: {"steps": n}; out: {"seconds": …, "images": …}.
With {"steps": n, "trace": folder} TensorFlow writes a profile of those steps there. At the end of
its input it stops training; out: {"ended": …}, with its peak of memory and what was chosen. Where
it fails: {"error": …}.

"plain" is `Model.fit`, "penstock" is `penstock.train.fit`. Both run one `fit` from beginning to
end, with a callback that waits between turns; before and after a turn it looks at the loss, which
waits for the device.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Way:
    """How to train. `options` are those of `penstock.train.fit`."""

    way: str
    network: str
    batch: int
    rows: int
    warm_up: int
    precision: str = "float32"
    jit: bool | str = "auto"
    options: dict[str, Any] = field(default_factory=dict)

    def told(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    way = Way(**json.loads(sys.argv[1]))
    try:
        say({"ended": _train(way)})
    except Exception as error:
        say({"error": type(error).__name__, "told": str(error)[:400], "peak_bytes": _peak()})


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _train(way: Way) -> dict[str, Any]:
    import keras

    from benchmarks.train import network

    began = time.monotonic()
    policy = way.precision if way.way == "plain" else "float32"
    model = network.compiled(way.network, policy, way.jit)
    images, classes = network.data(way.network, max(way.rows, way.batch))
    say({"loaded": round(time.monotonic() - began, 1)})
    if not sys.stdin.readline():
        return {"peak_bytes": 0, "report": {}}
    turns = _turns(keras, way, time.monotonic())
    common = {"batch_size": way.batch, "epochs": _EPOCHS, "verbose": 0, "callbacks": [turns]}
    report: dict[str, Any] = {"jit": bool(model.jit_compile)}
    if way.way == "plain":
        model.fit(images, classes, **common)
    else:
        from penstock.train import fit

        options = {"jit": report["jit"], **way.options}
        if way.precision != "float32":
            options["precision"] = way.precision
        history = fit(model, images, classes, **common, **options)
        report = history.report
    return {"peak_bytes": _peak(), "report": report}


def _turns(keras: Any, way: Way, began: float) -> Any:
    import tensorflow as tf

    class Turns(keras.callbacks.Callback):  # type: ignore[misc]
        """Goes on when it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.left = way.warm_up
            self.steps = 0
            self.since = 0.0
            self.traces = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.left -= 1
            if self.left > 0:
                return
            loss = float(logs["loss"])  # waits for the device
            if self.steps:
                seconds = time.perf_counter() - self.since
                if self.traces:
                    tf.profiler.experimental.stop()
                    say({"traced": seconds})
                else:
                    say({"seconds": seconds, "images": self.steps * way.batch, "loss": loss})
            else:
                say({"ready": round(time.monotonic() - began, 1), "loss": loss})
            line = sys.stdin.readline()
            if not line:
                self.left = 1 << 60
                self.model.stop_training = True
                return
            asked = json.loads(line)
            self.traces = "trace" in asked
            if self.traces:
                tf.profiler.experimental.start(asked["trace"])
            self.steps = self.left = asked["steps"]
            self.since = time.perf_counter()

    return Turns()


def _peak() -> int:
    """Bytes of the GPU that TensorFlow held at its peak; 0 without one."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


if __name__ == "__main__":
    main()
