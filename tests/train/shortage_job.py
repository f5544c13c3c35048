"""One of two workers, of which the second runs out of memory now and then; it goes on all the same.

A process of `test_fit_multiworker`, with TF_CONFIG. What comes of it goes into a file of
the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Which calls of the way back fail on the second worker, and how a run is asked for.
RUNS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "at once": ((1,), {}),
    "twice in a step": ((3, 4), {}),
    "in a second micro-batch": ((6,), {"accumulate": 2}),
    "in a second part": ((3, 5), {}),
}


def main(folder: Path) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import penstock
    from penstock.train import assembly, cluster
    from penstock.train.apart import WorkersStep
    from tests.conditions import until
    from tests.train.learning import network, rows

    found = cluster.found()
    assert found is not None
    penstock.train.prepare(timeout=30)
    assembly.may_run_out = lambda: not found.is_chief  # one of them suffices: all take such steps
    calls: list[int] = []
    failing: tuple[int, ...] = ()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def hard_to_differentiate(x: Any) -> Any:
        def fails() -> Any:
            calls.append(1)
            if not found.is_chief and len(calls) in failing:
                raise MemoryError  # in TensorFlow's words a ResourceExhaustedError
            return np.float32(1)

        return x, lambda dy: dy * tf.numpy_function(fails, [], tf.float32)

    class Hard(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return hard_to_differentiate(x)

    def normalized() -> Any:
        dropout = keras.layers.Dropout(0.0, seed=1)
        return network("adam", Hard, keras.layers.BatchNormalization, lambda: dropout)

    settings: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    told: dict[str, Any] = {}
    for name, (wanted, options) in RUNS.items():
        failing = wanted
        calls.clear()
        build = normalized if name == "in a second part" else lambda: network("adam", Hard)
        history = penstock.train.fit(build, *rows(), timeout=30, **settings, **options)
        report = history.report
        told[name] = {
            "weights": [each.numpy().tolist() for each in history.model.variables],
            "loss": history.history["loss"],
            "accuracy": history.history["accuracy"],
            "micros": report["micros"],
            "out_of_memory": report.get("out_of_memory"),
            "calls": len(calls),
        }
    failing = ()
    steps: list[WorkersStep] = []
    take = WorkersStep.__call__

    def kept(self: WorkersStep, iterator: Any) -> Any:
        steps.append(self)
        return take(self, iterator)

    def synchronized() -> Any:
        return network("adam", lambda: keras.layers.BatchNormalization(synchronized=True))

    WorkersStep.__call__ = kept  # type: ignore[method-assign]
    for name, build in (("lonely", normalized), ("synchronized", synchronized)):
        penstock.train.fit(build, *rows(), timeout=30, **settings)
        told[name] = steps[-1]._talks

    def no_room(self: WorkersStep, total: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")

    if not found.is_chief:
        WorkersStep._done_together = no_room  # type: ignore[method-assign]
    try:
        penstock.train.fit(lambda: network("adam"), *rows(), timeout=8, **settings)
    except penstock.errors.PenstockError as error:
        told["together"] = f"{type(error).__name__}: {error}"
    staged = folder / f"staged-{found.rank}"
    staged.write_text(json.dumps(told))
    staged.rename(folder / f"{found.rank}.json")
    if not found.is_chief:  # else the chief would hear of its end, not of its silence
        until((folder / "0.json").exists, 40)
