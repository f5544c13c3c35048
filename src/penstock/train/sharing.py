"""Data in parts, with parameter servers: each worker reads its own, and the chief none.

A step says who reads which part (`owners`), and its worker takes the next batch of what is its own
(`reading`); how many batches of each part were trained on is counted on the servers, behind each
change of the weights. A step without rows changes nothing: its worker's parts are over.

Between two rounds of steps, when none is under way, the chief looks who lives. A part whose worker
is gone goes on in another one's hands, and back when it has come back: from where the servers say
that it is. So a death costs the step that it hit, which is read again; and no row comes twice,
unless the worker died between changing the weights and saying so. With shard="off" nobody else has
its rows: it is waited for.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from penstock.errors import ConfigError, InputError, WorkerLost
from penstock.model.runtime import tf
from penstock.train.callbacks import Logs
from penstock.train.cluster import Cluster
from penstock.train.handing import AsyncLoop, Steps
from penstock.train.reading import FAILED, OVER, ROWS, STEPS, TOKEN, Asked, owners
from penstock.train.shipping import Change

_LOOKED_EVERY = 1.0
_PAUSE = 0.05


class Own:
    """Rows that workers read themselves; how far they are, as far as the chief knows."""

    def __init__(
        self, asked: Asked, like: Any, strategy: Any, steps: Steps, found: Cluster, timeout: float
    ) -> None:
        self._asked, self._like, self._handed = asked, like, steps
        self._found, self._timeout = found, timeout
        self._text = tf.constant(asked.text())
        self._epoch = tf.constant(0, tf.int64)
        self.at = np.zeros((4, asked.parts), np.int64)
        with strategy.scope():
            self._counted = tf.Variable(self.at, trainable=False, dtype=tf.int64)
        self._alive = [True] * found.size
        self._look_at = self._went_on = 0.0

    @property
    def policy(self) -> str:
        """How the workers share them."""
        return self._asked.policy

    @property
    def over(self) -> bool:
        """Whether nobody has any left."""
        return bool(self.at[OVER].all())

    @property
    def steps(self) -> int:
        """How many were taken in this epoch."""
        return int(self.at[STEPS].sum())

    @property
    def rows(self) -> int:
        """How many were trained on in this epoch."""
        return int(self.at[ROWS].sum())

    def begin(self, epoch: int, at: Any = None) -> None:
        """An epoch: from its beginning, or from where it was."""
        self.at = np.zeros_like(self.at) if at is None else np.asarray(at, np.int64)
        with self._handed.patience.watching():
            self._counted.assign(self.at)
        self._epoch = tf.constant(epoch, tf.int64)
        self._look_at, self._went_on = 0.0, time.monotonic()

    def round(self, function: Any, most: int | None = None) -> None:
        """Have workers take some steps, not more than `most`, and see how far they have come."""
        self._look()
        who = [*range(self._asked.parts)] if self.policy == "off" else owners(self._alive)
        arguments = (self._text, self._epoch, tf.constant(who, tf.int64))
        if self.at[OVER].any():  # who is done takes empty ones, faster than others take theirs
            most = min(self._found.size, most or self._found.size)
        returned = self._handed.round(function, arguments, most)
        with self._handed.patience.watching():
            before, self.at = self.at, self._counted.numpy()
        if self.at[FAILED].any():
            raise InputError(f"data could not be read on {_first_told(returned)}")
        if not (before == self.at).all():
            self._went_on = time.monotonic()
        elif time.monotonic() - self._went_on > self._timeout:
            raise self._stuck()
        else:
            time.sleep(_PAUSE)

    def run(self, change: Change, text: Any, epoch: Any, who: Any) -> Any:
        """On a worker: take a step on what it reads. What went wrong, or nothing."""
        asked = self._asked
        counted = tf.identity(self._counted)
        with tf.device("CPU:0"):
            answer = tf.raw_ops.PyFunc(
                input=[text, epoch, who, counted],
                token=TOKEN,
                Tout=[tf.as_dtype(kind) for kind in asked.kinds],
            )
        for each in answer[:4]:
            each.set_shape([])
        part, rows, over, wrong = answer[:4]

        def changed() -> Any:
            change(self._pieces(answer[4:]))
            return tf.constant(True)

        done = tf.cond(rows > 0, changed, lambda: tf.constant(False))
        with tf.control_dependencies([done]):
            failed = tf.cast(tf.strings.length(wrong) > 0, tf.int64)
            counts = tf.stack([tf.cast(done, tf.int64), rows, over, failed])
            own = tf.one_hot(part, asked.parts, dtype=tf.int64)
            self._counted.assign_add(counts[:, None] * own[None])
        return wrong

    def _pieces(self, flat: list[Any]) -> list[Any]:
        """`(x, y, sample_weight, count)` of each."""
        width = len(self._asked.spec) + 1
        pieces = []
        for at in range(0, len(flat), width):
            *parts, count = flat[at : at + width]
            for part, (_, shape) in zip(parts, self._asked.spec, strict=True):
                part.set_shape(shape)
            count.set_shape([])
            left = iter(parts)
            places = [
                next(left) if isinstance(each, tf.TensorSpec) else None
                for each in tf.nest.flatten(self._like)
            ]
            pieces.append((*tf.nest.pack_sequence_as(self._like, places), count))
        return pieces

    def check_ends(self) -> None:
        """Refuse data that should have been the same on all workers, and was not."""
        if self.policy not in ("data", "rows"):
            return
        parts, found = self._asked.parts, self.at[STEPS]
        expected = (found.sum() + parts - 1 - np.arange(parts)) // parts
        if (found != expected).any():
            raise ConfigError(
                f'with shard="{self.policy}" every worker must be given the same data (for one of '
                f'each worker\'s own say shard="off"); got parts of {found.tolist()} batches'
            )

    def _look(self) -> None:
        """Who lives. One that does not answer is asked rarely: that takes its time."""
        from penstock.train.servers import silent

        began = time.monotonic()
        if began < self._look_at:
            return
        gone = silent(self._found.workers)
        self._alive = [address not in gone for address in self._found.workers]
        now = time.monotonic()
        self._look_at = now + max(_LOOKED_EVERY, 10 * (now - began))

    def _stuck(self) -> WorkerLost:
        from penstock.train.servers import silent

        left = np.flatnonzero(self.at[OVER] == 0).tolist()
        gone = ", ".join(silent(self._found.workers))
        told = f"nobody answers at {gone}" if gone else "has its script not come to fit?"
        return WorkerLost(
            f"within {self._timeout:g} s no worker read on in part {left} of the data; {told}"
        )


class OwnLoop(AsyncLoop):
    """The loop that hears from the servers which steps were taken, after each round of them."""

    def _steps(self) -> None:
        run, at, own = self.run, self.at, self._rows
        own.begin(at.epoch, at.parts if at.in_epoch else None)
        while not own.over:
            began, rows = time.monotonic(), own.rows
            run.step(run.save_every - at.step % run.save_every if run.save_every else None)
            at.parts = own.at.tolist()
            self.rows_taken += own.rows - rows
            self.steps_taken += own.steps - at.in_epoch
            if self._first[0] == 0:
                self._first = (self.steps_taken, self.rows_taken, time.monotonic() - began)
            for _ in range(own.steps - at.in_epoch):
                run.listeners.tell("train_batch_begin", at.in_epoch, {})
                at.in_epoch, at.step = at.in_epoch + 1, at.step + 1
                run.listeners.tell("train_batch_end", at.in_epoch - 1, Logs(self._logs))
            self._look_now_and_then()
            if run.save_every and at.step % run.save_every == 0:
                self._save()
            if self._stops():
                return
        own.check_ends()

    def _save(self) -> None:
        self.at.parts = self.at.parts if self.at.in_epoch else None
        super()._save()


def _first_told(returned: list[Any]) -> str:
    texts = (bytes(each.fetch()).decode(errors="replace") for each in returned)
    return next((text for text in texts if text), "a worker that is gone")
