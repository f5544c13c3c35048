"""Steps that are handed out to workers by the coordinator, and a loop that waits for them.

Workers count at the same time: what a piece adds to the metrics is worked out aside, and then added
to the counters on the servers in one go each, so that nothing is lost between reading and writing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import WorkerLost
from penstock.model.runtime import keras, tf
from penstock.train.callbacks import Listeners
from penstock.train.cluster import Cluster
from penstock.train.loop import Loop, Position, Run
from penstock.train.passes import count_in
from penstock.train.patience import Patience
from penstock.train.tally import Tally

_ROUND = 16  # steps for each worker between two waits, at most
_SHORT = 5.0  # seconds that a round should take
_LOOKED_EVERY = 1.0
_LOST = 10.0  # seconds without a parameter server


class Steps:
    """Functions handed out to workers; each takes one step."""

    def __init__(
        self, coordinator: Any, found: Cluster, timeout: float, patience: Patience
    ) -> None:
        self._coordinator, self._found, self._timeout = coordinator, found, timeout
        self.patience = patience
        self._round = found.size
        self._open = 0
        self._began = 0.0

    def hand_out(self, function: Any, arguments: tuple[Any, ...]) -> None:
        """To whichever worker is free."""
        self.patience.beat()
        if self._open == 0:
            self._began = time.monotonic()
        self._schedule(function, arguments)
        if self._open >= self._round:
            self._end_of_round()

    def round(
        self, function: Any, arguments: tuple[Any, ...], most: int | None = None
    ) -> list[Any]:
        """As many as go between two waits, and wait for them: what they return, yet to fetch."""
        self.patience.beat()
        self._began = time.monotonic()
        count = self._round if most is None else min(most, self._round)
        returned = [self._schedule(function, arguments) for _ in range(count)]
        self._end_of_round()
        return returned

    def _schedule(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        self._open += 1
        return self._coordinator.schedule(function, args=arguments)

    def _end_of_round(self) -> None:
        self.join()
        if time.monotonic() - self._began < _SHORT:
            self._round = min(2 * self._round, _ROUND * self._found.size)

    def join(self) -> None:
        """Wait until all are done; not longer than the timeout, nor for a server that is gone."""
        from penstock.train.servers import silent

        began = looked = heard = time.monotonic()
        while not self._coordinator.done():
            time.sleep(0.001)
            self.patience.beat()
            now = time.monotonic()
            if now - looked > _LOOKED_EVERY:
                looked = now
                gone = silent(self._found.servers)
                heard = heard if gone else now
                if now - heard > _LOST:
                    raise WorkerLost(
                        f"parameter servers lost: {', '.join(gone)}; with them the weights. Start "
                        "again from the newest checkpoint (penstock train --restarts 3 does)"
                    )
            if now - began > self._timeout:
                dead = silent([*self._found.servers, *self._found.workers])
                raise WorkerLost(
                    f"{self._open} steps were not done within {self._timeout:g} s; "
                    f"nobody answers at {', '.join(dead)}"
                    if dead
                    else f"{self._open} steps were not done within {self._timeout:g} s, "
                    "though every task answers"
                )
        self._open = 0


class Rested:
    """Listeners that may take as long as they like: that is not the cluster's silence."""

    def __init__(self, listeners: Listeners, patience: Patience) -> None:
        self._listeners, self._patience = listeners, patience

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call the callbacks."""
        with self._patience.resting():
            self._listeners.tell(hook, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listeners, name)


class AsyncLoop(Loop):
    """The loop, which waits for its steps where their results are told or kept."""

    def __init__(self, run: Run, position: Position, steps: Steps, rows: Any) -> None:
        super().__init__(run, position)
        self._handed, self._rows = steps, rows

    def _iterator(self) -> Any:
        return self._rows.begin(self.at.epoch, self.at.in_epoch)

    def _begin_next(self) -> None:
        """Rows are handed out from here: there is no iterator on its way to a device."""

    def _end_of_epoch(self, began: float) -> dict[str, float]:
        self._handed.join()
        return super()._end_of_epoch(began)

    def _keeps_after(self, error: Exception) -> bool:
        return not isinstance(error, (WorkerLost, tf.errors.UnavailableError))

    def _logs(self) -> dict[str, float]:
        with self._handed.patience.watching():
            return super()._logs()

    def _save(self) -> None:
        self._handed.join()
        with self._handed.patience.resting():  # a disk may take its time
            super()._save()


def count_at_once(
    model: Any, tally: Tally, x: Any, y: Any, y_pred: Any, weight: Any, count: Any
) -> None:
    """Update the metrics but the loss, while others do."""
    counters = tally.counters
    zeros = [(each, tf.zeros(each.shape, each.dtype)) for each in counters]
    with keras().StatelessScope(state_mapping=zeros) as scope:
        count_in(model, tally, x, y, y_pred, weight, count, [])
        added = [scope.get_current_value(each) for each in counters]
    for counter, addend in zip(counters, added, strict=True):
        counter.value.assign_add(addend * tf.cast(count > 0, addend.dtype))


def count_loss_at_once(tracker: Any, loss: Any, rows: Any) -> None:
    """The loss of so many rows in a mean of them, while others count theirs."""
    rows = tf.cast(rows, tf.float32)
    weighed = tf.where(rows > 0, tf.cast(loss, tf.float32) * rows, 0.0)
    tracker.total.value.assign_add(weighed)
    tracker.count.value.assign_add(rows)


@contextlib.contextmanager
def steps_at_once(optimizer: Any) -> Iterator[None]:
    """While an optimizer changes weights: the steps that it counts, by which rates are scheduled.

    Keras reads what it adds to: steps that end at the same time would count as one.
    """
    counter = optimizer.iterations
    vars(counter)["assign_add"] = lambda value: counter.value.assign_add(
        tf.cast(value, counter.dtype)
    )
    try:
        yield
    finally:
        del vars(counter)["assign_add"]


@contextlib.contextmanager
def losses_at_once(model: Any, rows: Any) -> Iterator[None]:
    """While a model computes its loss, of so many rows: those of its single outputs.

    Keras counts them then, by batches, and reads what it adds to: others would be lost.
    """
    compiled = model._compile_loss
    trackers = compiled.metrics if compiled is not None else []

    def counting(tracker: Any) -> Any:
        return lambda loss, sample_weight=None: count_loss_at_once(tracker, loss, rows)

    for each in trackers:
        vars(each)["update_state"] = counting(each)
    try:
        yield
    finally:
        for each in trackers:
            del vars(each)["update_state"]
