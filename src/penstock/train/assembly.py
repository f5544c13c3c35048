"""The parts of a run that depend on each other: feed, step, loop, checkpoints, report."""

from __future__ import annotations

import functools
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError, DeviceMemoryError
from penstock.model.runtime import keras
from penstock.train.agreement import agreed, largest
from penstock.train.alike import check_alike, check_order
from penstock.train.apart import Parts, WorkersStep, may_run_out
from penstock.train.callbacks import Listeners
from penstock.train.carry import check_home, give_back, is_whole
from penstock.train.chance import Chance
from penstock.train.choosing import compiled_at_first, micros_that_fit, tried
from penstock.train.feed import feed_for
from penstock.train.feed.batches import check_epochs
from penstock.train.history import History
from penstock.train.jit import Tried
from penstock.train.keeping import Keeper
from penstock.train.loop import Loop, Run, listed
from penstock.train.micro import one_row_does_not_fit
from penstock.train.options import Options
from penstock.train.passes import check_targets
from penstock.train.saving import Kept
from penstock.train.scaling import leave, optimizer_of, scale_of
from penstock.train.step import TrainStep
from penstock.train.strategies import Place
from penstock.train.tally import Tally
from penstock.train.undoing import Before
from penstock.train.validation import Validation
from penstock.train.weighing import Weighing


@dataclass
class Assembly:
    """The parts of a run that depend on each other."""

    model: Any
    place: Place
    options: Options
    batch_size: int = 0  # of one change of the weights, on all workers
    micros: int = 1
    jit: bool | str = False
    through: Any = None  # what computes the model forward; itself, as a rule
    seed: int = 0
    told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parts = Parts(self._tell_parts)
        self._apart = False

    def trained(self, data: tuple[Any, Any, Any], validation_data: Any, callbacks: Any) -> History:
        options, where = self.options, self.place
        self._apart = where.workers > 1 and largest(where, int(may_run_out())) > 0
        drawn = options.seed if options.seed is not None else random.SystemRandom().getrandbits(31)
        self.seed = agreed(where, 0 if options.deterministic and options.seed is None else drawn)
        self._keeper = keeper = Keeper(options, where)
        if keeper.newest is not None:
            self.seed = int(keeper.newest.facts["seed"])
        check_epochs(data[0], options.trainings)
        feed = self._feed(data, options.batch_size, 1, training=True)
        self.batch_size = feed.share.batch_size
        asked = options.micros(self.batch_size, where.workers, where.local)
        self.micros = max(asked, keeper.micros(self.batch_size))
        feed = feed.recut(self.micros)
        check_alike(where, options, feed, self.micros, validation_data is not None)
        self._spec = feed.dataset(0).element_spec[:3]
        check_targets(self.model, self._spec[1])
        with where.scope():
            self._check_home()
            self.build(self.model)
            self._check_home()  # of metrics it is known only now
            self.scale = scale_of(self.model)
            chance = Chance(alone=where.kind == "one")
        self.tally = Tally(self.model, chance)
        self.before = Before(where, self.tally)
        self.jit = compiled_at_first(self.model, where, options.jit, options.deterministic)
        self.through = self._recomputed(feed)
        feed = self._fitting(feed)
        kept = Kept(self.model, self.tally, self.scale)
        at = keeper.begin(kept, feed)
        params = options.params(feed.likely_steps)
        alone = where.workers == 1 and options.checkpoints is None
        listeners = Listeners(self.model, callbacks, params, where.is_chief, alone)
        profiler = self._profiler()
        loop = Loop(
            Run(
                self.model,
                where,
                self.tally,
                feed,
                self._step(feed),
                listeners,
                options.epochs,
                validate=self._validation(validation_data, listeners),
                validation_freq=options.validation_freq,
                save=keeper.saving(kept, self.seed, listeners.all),
                save_every=options.checkpoint_every,
                recover=self._smaller,
                watch=profiler.watch if profiler is not None else None,
                recall=keeper.recall,
            ),
            at,
        )
        resumed, began = at.step, time.monotonic()
        try:
            loop()
        finally:
            leave(self.scale, self.model)
            listeners.close()
            if profiler is not None:
                profiler.close()
        if profiler is not None and profiler.summary is not None:
            self.told["profile"] = profiler.summary.to_json()
        seconds = time.monotonic() - began
        return History(
            self.model,
            listed(listeners.history.history),
            list(listeners.history.epoch),
            params,
            self._report(loop, resumed, seconds),
        )

    def build(self, model: Any) -> None:
        """Make all variables of a model, before anything is traced."""
        model._symbolic_build(data_batch=keras().tree.map_structure(_or_none, self._spec))

    def give_back(self, model: Any, lost: bool) -> None:
        """What was learnt, to another of the same making, which may have no weights yet."""
        if not is_whole(model):
            self.build(model)
        give_back(self.model, model, lost)

    def _check_home(self) -> None:
        if self.place.local > 1:
            check_home(self.model, self.place.strategy)

    # Data

    def _feed(self, data: Any, batch_size: int | None, micros: int, training: bool) -> Any:
        where = self.place
        feed = feed_for(
            *data,
            batch_size=batch_size,
            replicas=where.local,
            worker=(where.worker, where.workers),
            micros=micros,
            shuffle=self.options.shuffle and training,
            seed=self.seed,
            shard=self.options.shard if training else _of_validation(self.options.shard),
            training=training,
        )
        check_order(where, feed)
        return feed

    def _validation(self, data: Any, listeners: Listeners) -> Validation | None:
        if data is None:
            return None
        parts = data if isinstance(data, (tuple, list)) else (data,)
        if len(parts) > 3:
            raise ConfigError(
                f"validation_data must be (x, y) or (x, y, sample_weight), not {len(parts)} parts"
            )
        check_epochs(parts[0], self.options.validations)
        size, micros = self.options.validation_batch_size, 1
        if size is None:
            size, micros = self.batch_size, self.micros  # pieces that fit in training
        feed = self._feed(parts, size, micros, training=False)
        jit = self.model.jit_compile if self.jit == "auto" else self.jit
        return Validation(self.model, self.place, self.tally, feed, listeners, bool(jit))

    # Steps

    def _step(self, feed: Any) -> Any:
        if self.jit != "auto":
            return self._way(feed, bool(self.jit))
        steps = None if feed.steps is None else feed.steps * self.options.epochs
        return tried(lambda jit: self._way(feed, jit), steps, self.model)

    def _way(self, feed: Any, jit: bool) -> TrainStep:
        """A step, compiled or not."""
        where, options = self.place, self.options
        pieces = where.replicas * self.micros
        weighing = Weighing(self.model, pieces, options.class_weight)
        kind: Any = TrainStep
        if self._apart:
            kind = functools.partial(WorkersStep, parts=self._parts)
        step: TrainStep = kind(
            self.model,
            where,
            weighing,
            self.tally,
            self.before,
            feed.dataset(0).element_spec,
            micros=self.micros,
            rows=self.batch_size / pieces,
            jit=jit,
            scale=self.scale,
            clip_norm=options.clip_norm,
            may_be_empty=feed.pads,
            through=self.through,
        )
        return step

    def _recomputed(self, feed: Any) -> Any:
        """What computes the model forward; "auto" recomputes only where that is needed to fit."""
        which = self.options.remat
        if not which or (which == "auto" and self._fits(feed)):
            return self.model
        from penstock.train.remat import remat

        with self.place.scope():
            return remat(self.model, which)

    def _fits(self, feed: Any) -> bool:
        """Whether a device holds a piece of a step as it is: all its rows, if nothing was said."""
        return self._micros_that_fit(feed, math.ceil(self.batch_size / self.micros)) == 1

    def _fitting(self, feed: Any) -> Any:
        """The feed, in micro-batches that fit, where that is asked for."""
        if self.options.micro_batch != "auto":
            return feed
        found = self._micros_that_fit(feed, self.batch_size)
        if not found:
            raise one_row_does_not_fit()
        self.micros = max(found, self._keeper.micros(self.batch_size))
        return feed.recut(self.micros)

    def _micros_that_fit(self, feed: Any, batch_size: int) -> int:
        """Of all workers the most; 0 where one of them cannot hold a single row."""
        asked, self.micros = self.micros, 2
        try:
            found = micros_that_fit(
                lambda: self._way(feed, False), self.model, self.place, feed, batch_size
            )
        except DeviceMemoryError:
            found = batch_size + 1
        finally:
            self.micros = asked
        most = largest(self.place, found)
        return most if most <= batch_size else 0

    def _smaller(self, run: Run, error: Exception) -> bool:
        """After an out-of-memory: twice the micro-batches, if they can be smaller."""
        if self.micros * self.place.local >= self.batch_size:
            raise one_row_does_not_fit() from error
        if self.place.workers > 1:
            raise self._for_the_next_start() from error
        run.step.undo()
        self.micros *= 2
        self.told.setdefault("out_of_memory", []).append({"micros": self.micros})
        run.feed = run.feed.recut(self.micros)
        run.step = self._step(run.feed)
        return True

    def _tell_parts(self, parts: int) -> None:
        """One of several workers goes on in so many parts; the others need not know."""
        micros, where = self.micros * parts, self.place
        self.told.setdefault("out_of_memory", []).append({"micros": micros})
        if self.options.verbose not in (0, "0", False):
            who = f"worker {where.worker} of {where.workers}"
            print(f"penstock: {who} ran out of memory, takes {micros} micro-batches a step now")

    def _for_the_next_start(self) -> DeviceMemoryError:
        """What all workers do together, one alone cannot do again (see `apart`)."""
        kept = self._keeper.leave_word(self.batch_size, 2 * self.micros)
        again = (
            "started again from the newest checkpoint (penstock train --restarts 3 does that), all "
            f"take {2 * self.micros}"
            if kept
            else f"start again with accumulate={2 * self.micros}, or checkpoints and --restarts"
        )
        return DeviceMemoryError(
            f"worker {self.place.worker} of {self.place.workers} ran out of memory in a step of "
            f"{self.micros} micro-batches: {again}"
        )

    # What is told

    def _profiler(self) -> Any:
        if self.options.profile is None or not self.place.is_chief:
            return None
        from penstock.train.profile import Profiler

        return Profiler(self.options.profile, optimizer_of(self.model).name)

    def _report(self, loop: Loop, resumed: int, seconds: float) -> dict[str, Any]:
        where, options, feed = self.place, self.options, loop.run.feed
        micros = self.micros * self._parts.count
        pieces = where.replicas * micros
        steps, rows = loop.pace(seconds)
        return {
            "strategy": where.kind,
            "worker": where.worker,
            "workers": where.workers,
            "replicas": where.replicas,
            "reduce": where.reduction,
            "shard": feed.policy,
            "batch_size": self.batch_size,
            "micros": micros,
            "micro_batch": -(-self.batch_size // pieces),
            "precision": options.precision or self.model.dtype_policy.name,
            **_compiled_way(loop.run.step),
            "remat": self.through is not self.model,
            "loss_scale": None if self.scale is None else self.scale.to_json()["scale"],
            "seed": self.seed,
            "steps": loop.at.step,
            "resumed_at_step": resumed or None,
            "steps_per_second": round(steps, 3),
            "rows_per_second": round(rows, 1),
            "seconds": {name: round(value, 3) for name, value in loop.seconds.items()},
            **self.told,
        }


def _compiled_way(step: Any) -> dict[str, Any]:
    """Whether a step is compiled in the end; and what was measured, where it was tried."""
    if isinstance(step, Tried):
        return {"jit": bool(step.contest.compiled), "jit_trial": step.contest.report()}
    return {"jit": step.jit}


def _of_validation(shard: str) -> str:
    """Files are shared where there are some; what is validated on may lie elsewhere."""
    return "auto" if shard == "file" else shard


def _or_none(spec: Any) -> Any:
    return spec if hasattr(spec, "shape") and hasattr(spec, "dtype") else None
