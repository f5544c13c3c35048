"""The images of one process: which comes next, and whether an answer is right.

As in `benchmarks.models`, with bytes in place of floats, and a tolerance that `network.py` chose
for this network.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.models.images import Images, WrongAnswer

FACTS = "network.json"


def facts_of(folder: Path) -> dict[str, Any]:
    """What is known of the network in this folder."""
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    return facts


class Pictures(Images):
    """Single images or batches, and the answers that are right."""

    def __init__(self, folder: Path, number: int, outstanding: int = 1) -> None:
        super().__init__(folder, number, outstanding)
        self._tolerance: float = facts_of(folder)["tolerance"]

    def check(self, slot: int, answer: Any) -> None:
        first = self._sent[slot]
        self.check_batch(answer, self._answers[first : first + 1])

    def check_batch(self, answers: Any, expected: Any) -> None:  # type: ignore[override]
        """Raise WrongAnswer unless each is right."""
        if answers.shape != expected.shape:
            raise WrongAnswer(f"expected the shape {expected.shape}, got {answers.shape}")
        off = float(np.abs(answers - expected).max())
        if not off <= self._tolerance:
            raise WrongAnswer(f"an answer is off by {off:.3g}; {self._tolerance:.3g} is allowed")

    def batch(self, size: int) -> tuple[Any, Any]:
        """As `Images` has it; a batch of more images than there are has some of them again."""
        if size <= len(self._images):
            return super().batch(size)
        again = np.arange(size) % len(self._images)
        return self._images[again], self._answers[again]

    def repeated(self, rows: int) -> tuple[npt.NDArray[np.uint8], Any]:
        """So many images, the same ones again and again, and the right answer to row `i % n`."""
        several: Any = self._images
        array = np.empty((rows, *several.shape[1:]), several.dtype)
        for start in range(0, rows, len(several)):
            array[start : start + len(several)] = several[: rows - start]
        return array, self._answers
