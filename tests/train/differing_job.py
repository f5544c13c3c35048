"""One of two workers that are not given the same: what comes of it goes into a file of a folder.

A process of `test_fit_multiworker`, with TF_CONFIG.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    import keras

    import penstock
    from penstock.errors import ConfigError
    from penstock.train import cluster, loop
    from tests.train.learning import network, rows

    found = cluster.found()
    assert found is not None
    x, y = rows()
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0, "timeout": 30}

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        """The chief wants to stop after its second epoch, the other worker after its first."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == (1 if found.is_chief else 0)

    class StopInside(keras.callbacks.Callback):  # type: ignore[misc]
        """The chief wants to stop after its third step, the other worker after its first."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch >= (2 if found.is_chief else 0)

    class Unknown:
        """What JSON cannot hold."""

    def odd() -> Any:
        model = network("adam")
        model.get_config = lambda: {"width": Unknown()}
        return model

    told: dict[str, Any] = {}
    history = penstock.train.fit(odd, x, y, epochs=4, callbacks=[Stop()], **settings)
    told["epochs"] = history.epoch
    told["weights"] = [each.tolist() for each in history.model.get_weights()]
    told["steps"] = int(history.model.optimizer.iterations.numpy())
    told["loss"] = history.model.evaluate(x, y, verbose=0)[0]
    loop._LOOKED_STEPS = 2
    history = penstock.train.fit(network, x, y, epochs=4, callbacks=[StopInside()], **settings)
    told["inside"] = [history.epoch, int(history.model.optimizer.iterations.numpy())]
    looked: list[float] = []

    class LooksAlone(keras.callbacks.Callback):  # type: ignore[misc]
        """The chief looks at every batch of a validation, in which it has more than the other."""

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if found.is_chief:
                looked.append(logs["loss"])

    own = {"validation_data": (x[:20], y[:20]) if found.is_chief else (x[20:29], y[20:29])}
    history = penstock.train.fit(
        network, x, y, shard="off", callbacks=[LooksAlone()], **own, **settings
    )
    told["looked"] = looked
    told["validated"] = history.history["val_loss"][0]
    told["validation"] = [
        history.model.evaluate(x[a:b], y[a:b], batch_size=4, verbose=0)[0]
        for a, b in ((0, 20), (20, 29))
    ]
    (folder / "word").mkdir(exist_ok=True)
    word = {"batch_size": 8, "micros": 4}
    (folder / "word" / "micro-batches.json").write_text(json.dumps(word))
    history = penstock.train.fit(network, x, y, checkpoints=folder / "word", **settings)
    told["micros"] = history.report["micros"]
    differing: dict[str, tuple[int, dict[str, Any]]] = {
        "folder": (len(x), {"checkpoints": folder / "kept"} if found.is_chief else {}),
        "rows": (37 if found.is_chief else 20, {}),
    }
    for name, (count, options) in differing.items():
        try:
            penstock.train.fit(network, x[:count], y[:count], **settings, **options)
        except ConfigError as error:
            told[name] = str(error)
    import tensorflow as tf

    # As of keras.utils.image_dataset_from_directory, which draws a seed where it is given none.
    drawn = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40, seed=5 + found.rank).batch(8)
    for name, data in (("seeds", (drawn,)), ("validation seeds", (x, y))):
        try:
            penstock.train.fit(
                *(network, *data), validation_data=drawn, verbose=0, timeout=30, shuffle=False
            )
        except ConfigError as error:
            told[name] = str(error)
    (folder / f"{found.rank}.json").write_text(json.dumps(told))
