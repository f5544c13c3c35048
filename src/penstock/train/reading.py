"""A worker of parameter servers that reads its data itself.

All tasks run the same script. A worker comes as far as `fit`, and there leaves what it was given
with its `Reader`; the chief's steps call that by its name (`TOKEN`), in the worker's process, and
take the next batch of the part that is the worker's. How far each part is lies with the servers,
so whoever reads it next goes on from there: a worker that came back, or another one.

What the chief asks for is `Asked`; an answer is a list of arrays (`Asked.kinds`): the part, its
rows, whether it is over, what went wrong, and then the pieces of a step.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InputError
from penstock.model.runtime import tf
from penstock.train.feed.feed import Share
from penstock.train.feed.parts import Part, part_of

TOKEN = "penstock.train.reading"
STEPS, ROWS, OVER, FAILED = range(4)  # what is counted of each part
_SOON = 0.5  # seconds that a step waits for a script that has not come to `fit` yet
_HEAD = ("int64", "int64", "int64", "string")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Asked:
    """What the chief wants read: the same for all steps of a run."""

    which: str  # "training" or "validation"
    policy: str
    parts: int
    batch_size: int
    micros: int
    shuffle: bool
    seed: int
    spec: tuple[tuple[str, tuple[int | None, ...]], ...]  # dtype and shape, as it lies flat

    def text(self) -> str:
        """To be sent."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def of(text: bytes) -> Asked:
        """As it was sent."""
        told = json.loads(text)
        told["spec"] = tuple((kind, tuple(shape)) for kind, shape in told["spec"])
        return Asked(**told)

    @property
    def kinds(self) -> list[str]:
        """The dtypes of an answer."""
        return [*_HEAD, *([kind for kind, _ in self.spec] + ["int32"]) * self.micros]


def spec_of(dataset: Any) -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    """How the elements of a feed's data set look, without how many rows they have."""
    parts = tf.nest.flatten(dataset.element_spec[:3])
    return tuple(
        (part.dtype.name, (None, *part.shape.as_list()[1:]))
        for part in parts
        if isinstance(part, tf.TensorSpec)
    )


class Reader:
    """Answers the steps that reach this worker, one after the other."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._given: dict[str, Any] = {}
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._parts: dict[tuple[Asked, int], Part] = {}
        self._open: dict[tuple[Asked, int], _Stream] = {}

    def attach(self) -> None:
        """From now on steps find it, where they can."""
        names = names_of_functions()
        if names is not None:
            _attached.append(self.answer)
            names[TOKEN] = _attached[-1]  # which holds on to nothing itself

    def give(self, training: Any, validation: Any) -> None:
        """What there is to read: as `fit` was called here."""
        self._given = {"training": training, "validation": validation}
        self._ready.set()

    def answer(self, text: bytes, epoch: Any, owners: Array, counted: Array) -> list[Any]:
        """The next batch of a part that is ours; of none, where there is none, or not yet."""
        asked = Asked.of(text)
        with self._lock:
            if not self._ready.wait(_SOON):
                return _nothing(asked)
            mine = _mine(self._index, owners, counted[OVER])
            if mine is None:
                return _nothing(asked)
            try:
                with tf.device("CPU:0"):
                    return self._read(asked, int(epoch), mine, int(counted[STEPS, mine]))
            except Exception as error:
                told = f"worker {self._index}: {type(error).__name__}: {error}"
                return _nothing(asked, mine, wrong=told)

    def _read(self, asked: Asked, epoch: int, part: int, number: int) -> list[Any]:
        stream = self._open.get((asked, part))
        if stream is None or (stream.epoch, stream.number) != (epoch, number):
            self._open = {key: each for key, each in self._open.items() if each.epoch == epoch}
            stream = _Stream(epoch, number, self._part(asked, part).elements(epoch, number))
            self._open[asked, part] = stream
        pieces = stream.step(asked.micros)
        if not pieces:
            del self._open[asked, part]
            self._part(asked, part).feed.ended(epoch)
            return _nothing(asked, part, over=True)
        rows = sum(int(count) for *_, count in pieces)
        return [np.int64(part), np.int64(rows), np.int64(0), b"", *itertools.chain(*pieces)]

    def _part(self, asked: Asked, part: int) -> Part:
        if (asked, part) not in self._parts:
            given = self._given[asked.which]
            if given is None:
                raise InputError(f"no {asked.which} data was given to fit in this process")
            made = part_of(
                given,
                *(asked.policy, part, asked.parts),
                Share(asked.batch_size, micros=asked.micros),
                shuffle=asked.shuffle,
                seed=asked.seed,
                training=asked.which == "training",
            )
            found = spec_of(made.feed.dataset(0))
            if found != asked.spec:
                raise InputError(f"expected data as the chief has it, {asked.spec}; got {found}")
            self._parts[asked, part] = made
        return self._parts[asked, part]


class _Stream:
    """A part that is being read. `number`: the step that comes next."""

    def __init__(self, epoch: int, number: int, elements: Iterator[Any]) -> None:
        self.epoch, self.number, self._elements = epoch, number, elements

    def step(self, micros: int) -> list[list[Array]]:
        """The pieces of a step, flat; none behind the end."""
        taken = list(itertools.islice(self._elements, micros))
        self.number += 1
        return [
            [each.numpy() for each in tf.nest.flatten(element[:3]) if each is not None]
            + [np.int32(element[3])]
            for element in taken
        ]


_attached: list[Any] = []


def names_of_functions() -> Any | None:
    """TensorFlow calls Python by such names, in the process where they are known; `None` in a
    version that keeps them elsewhere.

    There is no public way to them: `tf.numpy_function` chooses the name itself, by counting, and
    the chief could not know what it is in a worker.
    """
    try:
        from tensorflow.python.ops import script_ops

        return script_ops._py_funcs._funcs
    except (ImportError, AttributeError):
        return None


def owners(alive: Sequence[bool]) -> list[int]:
    """Who reads each part: the worker of the same number, or the next that lives."""
    count = len(alive)
    return [
        next((at % count for at in range(part, part + count) if alive[at % count]), part)
        for part in range(count)
    ]


def _mine(index: int, owners: Array, over: Array) -> int | None:
    """The first part of a worker's that has something left: its own, before those it took over."""
    left = [int(part) for part in np.flatnonzero((owners == index) & (over == 0))]
    return index if index in left else next(iter(left), None)


def _nothing(asked: Asked, part: int = 0, over: bool = False, wrong: str = "") -> list[Any]:
    """An answer without rows."""
    head = [np.int64(part), np.int64(0), np.int64(over), wrong.encode()]
    none = [
        np.zeros([0 if n is None else n for n in shape], tf.as_dtype(kind).as_numpy_dtype)
        for kind, shape in asked.spec
    ]
    return [*head, *[*none, np.int32(0)] * asked.micros]
