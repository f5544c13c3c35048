"""Training in processes that may be killed at any moment.

All are forked from one server (see `tests.forked`). A run tells in files what became of it: its
steps as they end, then its weights, or the error that it ended with.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np

from tests.conditions import until
from tests.forked import FORKED

LIMIT = 40.0
ROWS = 50  # the last of 7 steps an epoch has 2 rows


class Run:
    """One process that trains, in a folder of its own. Leaving kills it, if it still runs."""

    def __init__(self, folder: Path, config: Any = None, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.process = FORKED.Process(target=_train, args=(str(folder), config, options))

    def __enter__(self) -> Run:
        for told in ("steps", "outcome", "weights"):  # by a run before
            (self.folder / told).unlink(missing_ok=True)
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def await_steps(self, count: int) -> None:
        """Until that many steps have ended."""
        until(lambda: self.steps() >= count or not self.process.is_alive(), LIMIT)
        assert self.steps() >= count, self._told(f"ended after {self.steps()} steps")

    def steps(self) -> int:
        """Steps that have ended in this process."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "steps").stat().st_size
        return 0

    def ended(self, limit: float = LIMIT) -> dict[str, Any]:
        """What became of it, which it stays alive to tell; fails when nothing has in time."""
        outcome = self.folder / "outcome"
        until(lambda: outcome.exists() or not self.process.is_alive(), limit)
        assert outcome.exists(), self._told(f"no outcome, exit {self.process.exitcode}")
        found: dict[str, Any] = json.loads(outcome.read_text())
        return found

    def _told(self, what: str) -> str:
        return f"{what}:\n" + (self.folder / "log").read_text()[-3000:]

    def weights(self) -> bytes:
        """Of a run that came to its end."""
        outcome = self.ended()
        assert "error" not in outcome, outcome
        return (self.folder / "weights").read_bytes()


def cluster(count: int) -> list[dict[str, Any]]:
    """TF_CONFIG of so many workers on this machine."""
    with contextlib.ExitStack() as sockets:
        held = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    return [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for index in range(count)
    ]


def _train(folder: str, config: Any, options: dict[str, Any]) -> None:
    """What a run's process does."""
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if config is not None:
        os.environ["TF_CONFIG"] = config if isinstance(config, str) else json.dumps(config)
    from penstock.errors import PenstockError

    try:
        outcome = _trained(folder, **options)
    except PenstockError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    Path(folder, ".outcome").write_text(json.dumps(outcome))
    os.rename(f"{folder}/.outcome", f"{folder}/outcome")
    signal.pause()  # others may still fetch what they need of the last step from here


def _trained(
    folder: str,
    rows: int = ROWS,
    pause: float = 0.0,
    poison: bool = False,
    dataset: bool = False,
    **options: Any,
) -> dict[str, Any]:
    import time

    import keras

    from penstock.train import fit

    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 6)).astype(np.float32)
    y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    if poison:
        y[rows // 2] = np.nan
    steps = os.open(f"{folder}/steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Told(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            os.write(steps, b".")
            time.sleep(pause)

    def model() -> Any:
        keras.utils.set_random_seed(7)
        layers = keras.layers
        made = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(1, "sigmoid"),
            ]
        )
        made.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
        return made

    given = {"batch_size": 8, "epochs": 4, "seed": 5, "deterministic": True, "verbose": 0}
    data: tuple[Any, ...] = (x, y)
    if dataset:
        import tensorflow as tf

        data = (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(rows, seed=2).batch(5),)
    history = fit(
        model, *data, validation_data=(x[:9], y[:9]), callbacks=[Told()], **{**given, **options}
    )
    parts = [np.asarray(part) for part in history.model.get_weights()]
    parts += [np.asarray(part) for part in history.model.optimizer.variables]
    Path(folder, "weights").write_bytes(b"".join(part.tobytes() for part in parts))
    report = history.report
    return {
        "history": history.history,
        "resumed": report["resumed_at_step"],
        "steps": report["steps"],
    }
