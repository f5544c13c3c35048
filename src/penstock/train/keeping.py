"""Checkpoints in a run: which one it goes on from, and when the chief writes the next.

All workers read the same folder, and make sure that they found the same in it. Writing takes the
chief alone: whatever is written, each worker has. But a worker that runs out of memory, and cannot
go on, leaves word there itself (`leave_word`), for the next start to begin with smaller pieces.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from penstock.data.atomic import publish, staged
from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf
from penstock.train.agreement import check_same, largest, level
from penstock.train.checkpoints import Checkpoints, State
from penstock.train.feed import Feed
from penstock.train.loop import Position
from penstock.train.memories import recall, remembered
from penstock.train.options import Options
from penstock.train.saving import Kept
from penstock.train.strategies import Place

_WORD = "micro-batches.json"
_NO_FOLDER, _EMPTY = -2, -1  # in place of a checkpoint's step


class Keeper:
    """The checkpoints of a run; of none, where no folder was named. `newest`: to go on from."""

    def __init__(self, options: Options, place: Place) -> None:
        self._options, self._place = options, place
        self._checkpoints: Checkpoints | None = None
        self.newest: State | None = None
        self._data: dict[str, Any] = {}
        if options.checkpoints is not None:
            self._checkpoints = Checkpoints(options.checkpoints, keep=options.keep)
            if self._goes_on:
                self.newest = self._checkpoints.newest(own=not options.resume)
            elif place.is_chief:
                self._checkpoints.begin_anew()
                (self._checkpoints.folder / _WORD).unlink(missing_ok=True)
        check_same(
            place,
            self._found(),
            "the newest checkpoint's step differs (checkpoints must be a folder that all see; "
            f"{_NO_FOLDER} is of a worker that was given none, {_EMPTY} of one that found nothing)",
        )

    @property
    def _goes_on(self) -> bool:
        """What is started again goes on in any case, with what it has written itself."""
        return self._options.resume or self._options.attempt > 0

    def _found(self) -> int:
        if self._checkpoints is None:
            return _NO_FOLDER
        return _EMPTY if self.newest is None else self.newest.step

    def leave_word(self, batch_size: int, micros: int) -> bool:
        """Such a batch is to be cut into so many micro-batches. Whether there is a folder."""
        if self._checkpoints is None:
            return False
        self._checkpoints.folder.mkdir(parents=True, exist_ok=True)
        path = str(self._checkpoints.folder / _WORD)
        with staged(path) as file:
            file.write(json.dumps({"batch_size": batch_size, "micros": micros}).encode())
        publish(path)
        return True

    def micros(self, batch_size: int) -> int:
        """How many were left word of, by any worker; 1 where nobody has."""
        found = 1
        if self._checkpoints is not None and self._goes_on:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                told = json.loads((self._checkpoints.folder / _WORD).read_text())
                found = int(told["micros"]) if told["batch_size"] == batch_size else 1
        return largest(self._place, found)

    def begin(self, kept: Kept, feed: Feed, **parts: Any) -> Position:
        """Where to begin: the variables are set, the same on all workers.

        `parts`: more of what decides which rows come at which step.
        """
        self._data = _told_of(feed, self._options.shuffle) | parts
        newest = self.newest
        if newest is None:
            level(self._place, kept.lasting())
            return Position(epoch=self._options.initial_epoch)
        if newest.step_in_epoch:
            _check_position(newest, self._data)
        same = kept.restore(newest)
        facts = newest.facts
        self._tell(newest)
        if not same:
            self._tell_metrics(newest)
        return Position(
            *(newest.epoch, newest.step_in_epoch, newest.step),
            *(facts["history"], facts["epochs"], facts.get("parts")),
        )

    def _tell(self, newest: State) -> None:
        """Where a run goes on: it may be that of yesterday, and at its end."""
        options = self._options
        if not self._place.is_chief or options.verbose in (0, "0", False):
            return
        where = f"from the checkpoint of step {newest.step} in {options.checkpoints}"
        if newest.epoch >= options.epochs:
            done = f"all {options.epochs} epochs are done, nothing is left to do"
            print(f"penstock: {done} ({where})", flush=True)
        else:
            at = f"epoch {newest.epoch + 1} of {options.epochs}, step {newest.step_in_epoch} of it"
            print(f"penstock: goes on at {at}, {where}", flush=True)

    def _tell_metrics(self, newest: State) -> None:
        """The model counts others than it did: not wrong, but for what an epoch tells of itself."""
        told = "the model's metrics are others than the checkpoint's"
        if not self._place.is_chief:
            return
        if newest.step_in_epoch:
            warnings.warn(
                f"{told}, which is of the middle of epoch {newest.epoch + 1}: of that epoch, all "
                f"metrics but the loss are counted from step {newest.step_in_epoch} on",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self._options.verbose not in (0, "0", False):
            print(f"penstock: {told}: the history has each of the epochs that counted it")

    def recall(self, callbacks: Sequence[Any]) -> None:
        """Have them remember what they did. All workers the same: what the chief's did."""
        if self.newest is not None:
            recall(callbacks, self.newest.facts.get("callbacks", {}), self.newest.arrays)

    def saving(
        self, kept: Kept, seed: int, callbacks: Sequence[Any]
    ) -> Callable[[Position, Any], None] | None:
        """A function that saves; `None` where there is nothing to save into."""
        if self._checkpoints is None:
            return None
        checkpoints = self._checkpoints

        def save(at: Position, counted: Any) -> None:
            # Where no step has counted anything yet, all take part in adding up what there is.
            arrays = kept.arrays(counted) if self._place.is_chief or counted is None else {}
            if not self._place.is_chief:
                return
            told, remembered_arrays = remembered(callbacks)
            facts = {
                **kept.facts(),
                "callbacks": told,
                "seed": seed,
                "data": self._data,
                "history": at.history,
                "epochs": at.epochs,
                "parts": at.parts,
                "versions": {"tensorflow": tf.__version__, "keras": keras().__version__},
            }
            everything = {**arrays, **remembered_arrays}
            checkpoints.save(State(at.step, at.epoch, at.in_epoch, everything, facts))

        return save


def _told_of(feed: Feed, shuffle: bool) -> dict[str, Any]:
    """What decides which rows come at which step."""
    told: dict[str, Any] = {
        "batch_size": feed.share.batch_size,
        "rows": feed.rows,
        "shuffle": shuffle,
    }
    if not feed.ends_together:  # each worker fills its part from rows of its own
        told |= {"shard": feed.policy, "workers": feed.share.workers}
    return told


def _check_position(newest: State, data: dict[str, Any]) -> None:
    """In the middle of an epoch a step's number says which rows were taken: of the same steps."""
    before = newest.facts.get("data", data)
    differing = [name for name in sorted({*before, *data}) if before.get(name) != data.get(name)]
    if differing:
        named = ", ".join(
            f"{name} {data.get(name)} where it was {before.get(name)}" for name in differing
        )
        raise ConfigError(
            f"the newest checkpoint is of step {newest.step_in_epoch} of an epoch, which would go "
            f"on with other rows: got {named}; change that at the end of an epoch, or give "
            "another folder, or resume=False"
        )
