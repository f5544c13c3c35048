"""Epochs: steps, validation, checkpoints, and whom to tell.

The loop hands a step to the device and goes on; it waits for the device only where somebody looks
at a metric. A loss that is no number is found at the end of an epoch at the latest, before every
checkpoint, and about every two seconds (several workers: every so many steps, the same on all). So
are weights that are none, but for the last: a layer may hide them from the loss. A callback of
Keras' may end training on them in peace (TerminateOnNaN): then no checkpoint is made of them.

The device waits for nobody at the end of an epoch but for what is told of it: weights are looked at
in one call, and the next epoch's data is on its way before anybody waits, where that goes unseen.

Whether an epoch was the last one is for the chief's callbacks to say; in the middle of an epoch,
several workers listen to it every so many steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import TrainingError
from penstock.model.runtime import keras, tf
from penstock.train.agreement import agreed, check_same
from penstock.train.callbacks import Listeners, Logs, appending
from penstock.train.feed.feed import check_some
from penstock.train.intake import Ahead, iterator_of
from penstock.train.jit import NotCompiled
from penstock.train.micro import is_out_of_memory
from penstock.train.scaling import optimizer_of
from penstock.train.soundness import Soundness
from penstock.train.strategies import Place
from penstock.train.tally import Tally

_LOOKED_EVERY = 2.0  # seconds
_LOOKED_STEPS = 64


@dataclass
class Position:
    """Where a run is."""

    epoch: int = 0
    in_epoch: int = 0  # steps of this epoch that are done
    step: int = 0  # steps of all that are done
    history: dict[str, list[Any]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)
    parts: list[list[int]] | None = None  # how far workers are that read parts of an epoch


@dataclass
class Run:
    """What the loop runs on. `step` and `feed` may be replaced on the way (`recover`)."""

    model: Any
    place: Place
    tally: Tally
    feed: Any
    step: Any  # called with an iterator
    listeners: Listeners
    epochs: int
    validate: Callable[[], dict[str, float]] | None = None
    validation_freq: int = 1
    save: Callable[[Position, Any], None] | None = None
    save_every: int | None = None
    recover: Callable[[Run, Exception], bool] | None = None
    watch: Callable[[int], None] | None = None  # called before each step, with its number
    recall: Callable[[Sequence[Any]], None] | None = None  # callbacks have begun: as they were


class Loop:
    """One run of `fit`."""

    def __init__(self, run: Run, position: Position) -> None:
        self.run, self.at = run, position
        self._counted: Any = None
        self._ahead, self._soundness = Ahead(), Soundness()
        self._looked = time.monotonic()
        self.seconds = {"train": 0.0, "validate": 0.0, "save": 0.0}
        self.steps_taken = self.rows_taken = 0
        self._first = (0, 0, 0.0)  # steps, rows and seconds at first, when a step is traced

    def pace(self, seconds: float) -> tuple[float, float]:
        """Steps and rows a second; without the first step, unless there is no other."""
        train = self.seconds["train"] or seconds
        steps, rows = self.steps_taken, self.rows_taken
        if steps > self._first[0]:
            first_steps, first_rows, first_seconds = self._first
            steps, rows, train = steps - first_steps, rows - first_rows, train - first_seconds
        return (steps / train, rows / train) if train > 0 else (0.0, 0.0)

    def __call__(self) -> None:
        try:
            self._epochs()
        finally:
            self._ahead.drop()

    def _epochs(self) -> None:
        run, at = self.run, self.at
        run.model._initial_epoch = None
        resumed = at.step > 0
        with _same_rate(run.model, resumed), appending(run.listeners.all, resumed):
            run.listeners.tell("train_begin", {})
        at.epoch = run.model._initial_epoch or at.epoch  # Keras' BackupAndRestore says so
        if run.recall is not None:
            run.recall(run.listeners.all)
        _tell_history(run.listeners.history, at)
        logs: dict[str, float] = {}
        for epoch in range(at.epoch, run.epochs):
            at.epoch = epoch
            if at.in_epoch == 0:
                run.model.reset_metrics()
            with _same_rate(run.model, at.in_epoch > 0):
                run.listeners.tell("epoch_begin", epoch, {})
            began = time.monotonic()
            self._steps()
            check_some(at.in_epoch, "train")
            logs = self._end_of_epoch(began)
            run.listeners.tell("epoch_end", epoch, logs)
            at.epoch, at.in_epoch = epoch + 1, 0
            at.epochs.append(epoch)
            for name, value in logs.items():
                at.history.setdefault(name, []).append(np.asarray(value).tolist())
            self._save()
            run.model.stop_training = bool(agreed(run.place, int(run.model.stop_training)))
            if run.model.stop_training:
                break
        self._ahead.drop()
        if at.epoch >= run.epochs:
            run.listeners.settle()
        # Before callbacks restore what they think best: as in Keras.
        optimizer_of(run.model).finalize_variable_values(run.model.trainable_variables)
        run.listeners.tell("train_end", logs)

    def _steps(self) -> None:
        """The rest of an epoch."""
        run, at = self.run, self.at
        iterator, begun = self._iterator(), at.in_epoch
        while run.feed.steps is None or at.in_epoch < run.feed.steps:
            run.listeners.tell("train_batch_begin", at.in_epoch, {})
            if run.watch is not None:
                run.watch(at.step)
            began = time.monotonic()
            try:
                counted, rows = run.step(iterator)
            except tf.errors.OutOfRangeError:
                break
            except (NotCompiled, tf.errors.OpError) as error:
                if not self._recovered(error):
                    raise
                iterator, begun = self._iterator(), at.in_epoch
                continue
            if self._was_empty(rows, at.in_epoch - begun):
                self._check_ends()
                break
            self._counted = counted or None
            self._count(time.monotonic() - began)
            run.listeners.tell("train_batch_end", at.in_epoch - 1, Logs(self._logs))
            self._look_now_and_then()
            if run.save_every and at.step % run.save_every == 0:
                self._save()
            if self._stops():
                break

    def _count(self, seconds: float) -> None:
        """A step was taken."""
        at, feed = self.at, self.run.feed
        size = feed.share.batch_size
        self.rows_taken += min(size, feed.rows - at.in_epoch * size) if feed.rows else size
        at.in_epoch += 1
        at.step += 1
        self.steps_taken += 1
        if self.steps_taken == 1:
            self._first = (1, self.rows_taken, seconds)

    def _was_empty(self, rows: Any, before: int) -> bool:
        """Whether nobody had a row for a step, after so many: as long as there are own ones, that
        is known without waiting for the device. It has changed nothing."""
        feed = self.run.feed
        if not feed.pads or feed.noted.count > before * feed.share.elements:
            return False
        return float(rows) == 0

    def _check_ends(self) -> None:
        """Refuse data sets that should have been the same on all workers, and were not."""
        run, feed = self.run, self.run.feed
        if feed.ends_together:
            check_same(
                run.place,
                feed.noted.count // feed.share.elements,
                'with shard="data" every worker must be given the same data set (for one of each '
                f'worker\'s own say shard="off"). The batches of epoch {self.at.epoch + 1} differ',
            )

    def _stops(self) -> bool:
        """In the middle of an epoch; of several workers all at the same step, as the chief says."""
        run = self.run
        if run.place.workers == 1:
            return bool(run.model.stop_training)
        if self.at.step % _LOOKED_STEPS:
            return False
        run.model.stop_training = bool(agreed(run.place, int(run.model.stop_training)))
        return bool(run.model.stop_training)

    def _recovered(self, error: Exception) -> bool:
        """Whether a step that was not taken can be tried again, in another way."""
        if is_out_of_memory(error):
            if self.run.recover is None or not self.run.recover(self.run, error):
                return False
        elif not isinstance(error, NotCompiled):
            return False
        if self.at.in_epoch == 0:
            self.run.model.reset_metrics()
        return True

    def _iterator(self) -> Any:
        run, at = self.run, self.at
        begun = self._ahead.taken(run.feed, at.epoch, at.in_epoch)
        if begun is not None:
            return begun
        run.feed.noted.forget()
        return iterator_of(run.feed, run.place, at.epoch, at.in_epoch)

    def _begin_next(self) -> None:
        """The next epoch's data, if there is to be one."""
        run, following = self.run, self.at.epoch + 1
        if following < run.epochs and not run.model.stop_training:
            self._ahead.begin(run.feed, run.place, following)

    def _end_of_epoch(self, began: float) -> dict[str, float]:
        run = self.run
        validates = run.validate is not None and (self.at.epoch + 1) % run.validation_freq == 0
        # While the device is busy with the last steps.
        found = None if run.listeners.ends_on_nan else self._look_at_weights()
        if not validates:
            self._begin_next()
        logs = self._logs()
        self.seconds["train"] += time.monotonic() - began
        self._refuse_nan(logs.get("loss", 0.0))
        self._refuse_nan_weights(found)
        if not run.model.stop_training:  # in its middle, as far as is known
            run.feed.ended(self.at.epoch)
        if validates:
            logs.update({f"val_{name}": value for name, value in self._validated().items()})
            self._begin_next()  # not before: it would take memory from validation
        return dict(sorted(logs.items()))  # as Keras has them

    def _validated(self) -> dict[str, float]:
        """If that fails, the epoch is not lost: what was trained is kept, to be validated again."""
        run, began = self.run, time.monotonic()
        assert run.validate is not None
        trained = run.tally.before() if run.save is not None and self._counted is None else None
        try:
            return run.validate()
        except Exception as error:
            if run.save is not None and self._keeps_after(error):
                run.save(self.at, self._counted if trained is None else trained)
            raise
        finally:
            self.seconds["validate"] += time.monotonic() - began

    def _keeps_after(self, error: Exception) -> bool:
        """Whether there is still something to be kept."""
        return True

    def _logs(self) -> dict[str, float]:
        return plain(self.run.tally.results(self._counted))

    def _save(self) -> None:
        if self.run.save is None:
            return
        began = time.monotonic()
        losses = self.at.history.get("loss", [0.0])
        loss = self._logs().get("loss", 0.0) if self.at.in_epoch else losses[-1]
        if self.at.in_epoch:
            self._refuse_nan(loss)
            self._refuse_nan_weights()
        if self.run.listeners.ends_on_nan and not (np.isfinite(loss) and self._spoilt() is None):
            return
        self.run.save(self.at, self._counted)
        self.seconds["save"] += time.monotonic() - began

    def _look_now_and_then(self) -> None:
        if self.run.place.workers > 1:
            due = self.at.step % _LOOKED_STEPS == 0
        else:
            due = time.monotonic() - self._looked >= _LOOKED_EVERY
        if due:
            self._looked = time.monotonic()
            self._refuse_nan(self._logs().get("loss", 0.0))

    def _refuse_nan(self, loss: float) -> None:
        if np.isfinite(loss) or self.run.listeners.ends_on_nan:
            return
        raise self._not_finite(f"the loss is {loss}", "a finite number")

    def _refuse_nan_weights(self, found: Any = None) -> None:
        """`found`: by a look that was taken before, and has not been waited for."""
        if self.run.listeners.ends_on_nan:
            return
        spoilt = self._spoilt(found)
        if spoilt is not None:
            raise self._not_finite(f"the weights {spoilt!r} are no numbers", "finite ones")

    def _spoilt(self, found: Any = None) -> str | None:
        """The first weights that are no numbers."""
        return self._soundness.spoilt(self._look_at_weights() if found is None else found)

    def _look_at_weights(self) -> Any:
        return self._soundness.look(self.run.model.trainable_variables)

    def _not_finite(self, what: str, expected: str) -> TrainingError:
        kept = "" if self.run.save is None else "; the checkpoints are from before that"
        return TrainingError(
            f"{what} at or before step {self.at.step} (epoch {self.at.epoch + 1}, step "
            f"{self.at.in_epoch} of it): expected {expected}. Try a smaller learning rate, "
            f"clip_norm=1.0, or look for such values in the data{kept}"
        )


@contextlib.contextmanager
def _same_rate(model: Any, resumed: bool) -> Iterator[None]:
    """Callbacks that are told of a beginning again must not change the learning rate again."""
    rate = optimizer_of(model)._learning_rate
    kept = rate.numpy() if resumed and isinstance(rate, keras().Variable) else None
    yield
    if kept is not None:
        rate.assign(kept)


def plain(results: dict[str, Any]) -> dict[str, float]:
    """Metrics as Python's numbers, by name, as Keras has them."""
    found: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, dict):  # of a metric that has several results
            found |= plain(value)
            continue
        array = np.asarray(value)
        found[name] = float(array) if array.ndim == 0 else array
    return dict(sorted(found.items()))


def listed(history: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Python's numbers, and lists of them where a metric is a vector."""
    return {name: [np.asarray(each).tolist() for each in many] for name, many in history.items()}


def _tell_history(history: Any, at: Position) -> None:
    """What was before a run was resumed."""
    history.epoch[:] = list(at.epochs)
    history.history.clear()
    history.history.update({name: list(values) for name, values in at.history.items()})
