"""What clients ask of a network: the digits of `penstock demo`, whose right answers are known.

`train` makes the network once, with the demo's own training, and a file of held-out digits with the
answers of the network called directly. `Digits` asks for them. It is briefly trained on purpose: it
is not sure of any digit, so each has an answer of its own, to be told from every other one's.
Digits whose answers are alike are left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.soak.work import Array
from penstock.cli.demo.child import Child, end_all, hear
from penstock.cli.demo.records import TOLERANCE

APART = 4 * TOLERANCE  # by which the answers of two digits differ at least, in some probability
_EPOCHS = 1
_TRAINING_LIMIT = 300.0
_FEWEST = 100


@dataclass(frozen=True)
class Trained:
    """Where the network is, and the digits to ask for."""

    network: Path
    digits: Path


def train(folder: Path) -> Trained:
    """Train the network in a process of its own; from here on all of this run is on CPUs."""
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "PENSTOCK_CACHE": str(folder / "cache"),
    }
    trained = Trained(folder / "network.keras", folder / "digits.npz")
    settings = {
        "network": str(trained.network),
        "digits": str(trained.digits),
        "epochs": _EPOCHS,
    }
    trainer = Child("penstock.cli.demo.training", settings, folder / "training.log")
    try:
        next(told for _, told in hear([trainer], _TRAINING_LIMIT) if "network" in told)
    finally:
        end_all([trainer])
    with np.load(trained.digits) as held_out:
        images, answers = held_out["images"], held_out["answers"]
    chosen = distinct(answers)
    assert len(chosen) >= _FEWEST, f"only {len(chosen)} digits can be told apart"
    np.savez(trained.digits, images=images[chosen], answers=answers[chosen])
    return trained


def distinct(answers: Array) -> list[int]:
    """Rows more than `APART` from each other, whose likeliest class is as far from the second."""
    chosen: list[int] = []
    second, first = np.sort(answers, axis=1)[:, -2:].T
    for row in np.flatnonzero(first - second > APART):
        if not chosen or np.abs(answers[chosen] - answers[row]).max(axis=1).min() > APART:
            chosen.append(int(row))
    return chosen


class Digits:
    """Asks for digits; a row is the place of one in the file."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as digits:
            self._images, self._answers = digits["images"], digits["answers"]

    def draw(self, chance: np.random.Generator, most: int) -> Array:
        """Digits that are all different."""
        count = int(chance.integers(1, min(most, len(self._images))))
        return chance.choice(len(self._images), count, replace=False)

    def inputs(self, numbers: list[int], rows: Array) -> Array:
        """The images."""
        images: Array = self._images[rows]
        return images

    def row_of(self, whole: Array, at: int) -> Array:
        """An image, or ten probabilities."""
        row: Array = whole[at]
        return row

    def is_right(self, number: int, row: int, answer: Array) -> bool:
        """The same class, and every probability within the tolerance."""
        right = self._answers[row]
        return bool(
            answer.shape == right.shape
            and answer.argmax() == right.argmax()
            and np.abs(answer - right).max() <= TOLERANCE
        )

    def owner(self, asked: Mapping[int, int], answer: Array) -> int | None:
        """No two digits have the same answer."""
        return next(
            (number for number, row in asked.items() if self.is_right(number, row, answer)), None
        )
