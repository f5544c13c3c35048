"""Whom the loop tells: Keras' callbacks, a progress bar on the chief, and the history.

Logs of a batch are read from the device when a callback looks at them, and not before: most never
do, and a read waits for the device. Callbacks that write files do so on the chief; on the other
workers they are called as well, for their decisions must be the same, with their files in a folder
that is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import keras

_WRITERS = ("filepath", "log_dir", "filename")
_SHOWN_EVERY = 0.1  # seconds


class Logs(dict[str, float]):
    """Values that are fetched when somebody looks."""

    def __init__(self, fetch: Callable[[], dict[str, float]]) -> None:
        super().__init__()
        self._fetch: Callable[[], dict[str, float]] | None = fetch

    def _filled(self) -> Logs:
        if self._fetch is not None:
            fetch, self._fetch = self._fetch, None
            super().update(fetch())
        return self

    def __getitem__(self, name: str) -> float:
        return super(Logs, self._filled()).__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return super(Logs, self._filled()).__iter__()

    def __len__(self) -> int:
        return super(Logs, self._filled()).__len__()

    def __contains__(self, name: object) -> bool:
        return super(Logs, self._filled()).__contains__(name)

    def __repr__(self) -> str:
        return super(Logs, self._filled()).__repr__()

    def get(self, name: str, default: Any = None) -> Any:
        return super(Logs, self._filled()).get(name, default)

    def keys(self) -> Any:
        return super(Logs, self._filled()).keys()

    def values(self) -> Any:
        return super(Logs, self._filled()).values()

    def items(self) -> Any:
        return super(Logs, self._filled()).items()

    def copy(self) -> dict[str, float]:
        return dict(self.items())


class Listeners:
    """The callbacks of a run; `close` when it is over."""

    def __init__(
        self, model: Any, given: Any, params: dict[str, Any], chief: bool, alone: bool
    ) -> None:
        library = keras()
        self._folder: str | None = None
        self.all = _flat(given)
        _check(self.all, alone)
        if not chief:
            self._redirect()
        histories = [each for each in self.all if isinstance(each, library.callbacks.History)]
        self.history: Any = histories[0] if histories else library.callbacks.History()
        if not histories:
            self.all.append(self.history)
        if chief and params["verbose"] != 0:
            self.all.append(_progress(library))
        model.history = self.history
        model.stop_training = False
        for each in self.all:
            averages = isinstance(each, library.callbacks.SwapEMAWeights)
            each.set_params({**params, "epochs": 0} if averages else params)
            each.set_model(model)
        self._of = {
            hook: [each for each in self.all if _has(each, hook)]
            for hook in (
                "train_batch_begin",
                "train_batch_end",
                "test_batch_begin",
                "test_batch_end",
            )
        }
        self.ends_on_nan = any(
            isinstance(each, library.callbacks.TerminateOnNaN) for each in self.all
        )

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call `on_<hook>` of those that have it."""
        for each in self._of.get(hook, self.all):
            getattr(each, f"on_{hook}")(*arguments)

    def settle(self) -> None:
        """After the last epoch, where a model has its averages already: they are to stay.

        Keras' callback, which is not told which epoch is the last, would give up the weights that
        they are averages of, and with them checkpoints that are to be gone on from.
        """
        for each in self.all:
            if isinstance(each, keras().callbacks.SwapEMAWeights) and each._ema_weights_in_model:
                each._finalize_ema_values()

    def close(self) -> None:
        """Throw away what was to be thrown away."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _redirect(self) -> None:
        for number, each in enumerate(self.all):
            for name in _WRITERS:
                path = getattr(each, name, None)
                if isinstance(path, (str, os.PathLike)):
                    if self._folder is None:  # which a worker that is killed leaves behind
                        self._folder = tempfile.mkdtemp(prefix="penstock-train-")
                    folder = Path(self._folder, str(number))
                    folder.mkdir(exist_ok=True)
                    setattr(each, name, str(folder / Path(path).name))


@contextlib.contextmanager
def appending(callbacks: Sequence[Any], resumed: bool) -> Iterator[None]:
    """While training begins: a run that is taken up again goes on with its files, too."""
    found = [each for each in callbacks if isinstance(each, keras().callbacks.CSVLogger)]
    before = [each.append for each in found]
    for each in found:
        each.append = each.append or resumed
    try:
        yield
    finally:
        for each, was in zip(found, before, strict=True):
            each.append = was


def _flat(given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, keras().callbacks.CallbackList):
        return list(given.callbacks)
    found = list(given) if isinstance(given, Sequence) else [given]
    for each in found:
        if not isinstance(each, keras().callbacks.Callback):
            raise ConfigError(f"callbacks must be Keras callbacks, not {type(each).__name__}")
    return found


def _check(callbacks: Sequence[Any], alone: bool) -> None:
    for each in callbacks:
        if not alone and isinstance(each, keras().callbacks.BackupAndRestore):
            raise ConfigError(
                "BackupAndRestore restores the chief only, and beside checkpoints something else "
                "than they do: with several workers, or with checkpoints, leave it out and use "
                "fit(…, checkpoints=folder)"
            )


def _has(callback: Any, hook: str) -> bool:
    """Whether a callback does anything there."""
    other = hook.removeprefix("train_")  # Keras' older name of it
    names = (f"on_{hook}", f"on_{other}")
    plain = keras().callbacks.Callback
    return any(
        getattr(type(callback), name, None) is not getattr(plain, name, None)
        or name in vars(callback)
        for name in names
    )


def _progress(library: Any) -> Any:
    class Progress(library.callbacks.ProgbarLogger):  # type: ignore[misc]
        """Keras' progress bar, which looks at the metrics a few times a second."""

        _shown = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            now, self.seen = time.monotonic(), batch + 1
            if now - self._shown >= _SHOWN_EVERY:
                self._shown = now
                super().on_train_batch_end(batch, logs)

    return Progress()
