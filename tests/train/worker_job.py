"""One worker of several: trains one model after another, and leaves their weights in a folder.

A process of `test_fit_multiworker`, with TF_CONFIG. Models and data are made before `fit` is
called, as scripts do; each worker's first weights are other ones, and the chief's count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RUNS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "sgd in pieces": {"accumulate": 4},
    "sgd in halves": {"accumulate": 2, "precision": "mixed_float16"},
    "sgd in halves, of unknown length": {"precision": "mixed_float16"},
    "adam": {"accumulate": 4, "jit": True},
    "adamw": {"accumulate": 2, "shard": "data"},  # from a tf.data.Dataset
    "sgd from files": {},
    "sgd from files, mixed": {"accumulate": 2, "shuffle": True, "seed": 5},
}
FILES = "rows-*.parquet"  # in the folder: the same rows


def main(folder: Path) -> None:
    import numpy as np
    import tensorflow as tf

    import penstock
    from penstock.train import cluster
    from tests.train.learning import network, rows

    found = cluster.found()
    assert found is not None
    x, y = rows()
    first = network("sgd")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    for by, options in RUNS.items():
        model = first if by == "sgd" else network(by.partition(" ")[0])
        if not found.is_chief:
            model.layers[0].bias.assign_add([0.5] * 16)
        data: Any = (x, y)
        if by == "adamw" or "unknown" in by:
            data = (dataset.filter(lambda *_: True) if "unknown" in by else dataset,)
        if "files" in by:
            data = (str(folder / FILES), "y")
        settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 1, "timeout": 30}
        validation = {"validation_data": (x[:11], y[:11])}
        history = penstock.train.fit(model, *data, **settings | validation | options)
        name = f"{by}-{found.rank}"
        np.savez(folder / f"{name}.npz", *history.model.get_weights())
        np.savez(folder / f"{name}-own.npz", *model.get_weights())
        told = {"history": history.history, "report": history.report}
        (folder / f"{name}.json").write_text(json.dumps(told))
