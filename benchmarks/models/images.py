"""The images of one process: which comes next, and whether an answer is right.

All processes map the same file, so that the images count once in the memory of a way. They are
float32, 110,592 bytes each, which is what the network takes: nobody converts anything. Each process
goes through all of them in an order of its own and begins again in another, so that those that are
asked about at one time are different, and come from memory and not from a cache.
"""

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt

NETWORK, IMAGES, ANSWERS = "network.keras", "images.npy", "answers.npy"
SHAPE = (96, 96, 3)
TOLERANCE = 1e-5  # of probabilities, of which the largest are about 0.01
_FLOATS_A_PAGE = 1024

Floats = npt.NDArray[np.float32]


class WrongAnswer(Exception):
    """An answer that is not the one which the model gives when it is called directly."""


class Images:
    """Single images, one for each request that may be outstanding, or batches of neighbours."""

    def __init__(self, folder: Path, number: int, outstanding: int = 1) -> None:
        # "c": TensorFlow uses the memory as it is only where it could be written to.
        self._images: Floats = np.asarray(np.load(folder / IMAGES, mmap_mode="c"))
        self._answers: Floats = np.asarray(np.load(folder / ANSWERS, mmap_mode="c"))
        self._images.reshape(-1)[::_FLOATS_A_PAGE].sum()  # mapped before anything is measured
        self._choice = random.Random(number)
        self._left: list[int] = []
        self._sent = [0] * outstanding

    def fresh(self, slot: int) -> Floats:
        """An image that this process has not sent before the others had their turn."""
        if not self._left:
            self._left = list(range(len(self._images)))
            self._choice.shuffle(self._left)
        self._sent[slot] = self._left.pop()
        image: Floats = self._images[self._sent[slot]]
        return image

    def check(self, slot: int, answer: Floats) -> None:
        """Raise WrongAnswer unless this is the answer to the slot's last image."""
        first = self._sent[slot]
        _compare(answer, self._answers[first : first + 1])

    def batch(self, size: int) -> tuple[Floats, Floats]:
        """So many images that lie beside each other, where they are, and their right answers."""
        first = self._choice.randrange(len(self._images) - size + 1)
        return self._images[first : first + size], self._answers[first : first + size]

    @staticmethod
    def check_batch(answers: Floats, expected: Floats) -> None:
        """Raise WrongAnswer unless each is right."""
        _compare(answers, expected)


def _compare(answers: Floats, expected: Floats) -> None:
    if answers.shape != expected.shape:
        raise WrongAnswer(f"expected the shape {expected.shape}, got {answers.shape}")
    off = float(np.abs(answers - expected).max())
    if not off <= TOLERANCE:
        raise WrongAnswer(f"an answer is off by {off:.3g}; {TOLERANCE:g} is allowed")
