"""The rows that clients send: new data for every request, and a cheap way to know its answer.

Each outstanding request has a region of random bytes of its own. A fresh row is a slice of that
region at a random offset, with a number stamped into its first word that no other request of the
run carries. Nothing is copied, and a row stays as it is until its answer has come, so a system
may read it as late as it likes. Prefix sums over the random bytes give the expected sum.
"""

import random

import numpy as np
import numpy.typing as npt

from benchmarks.core.work import ANSWER_WORDS, ROW_BYTES, ROW_WORDS

REGION_WORDS = (1 << 20) // 8
_SEED = 20_240_224
_WORD = (1 << 64) - 1
_SCRAMBLE = 0x9E3779B97F4A7C15


class WrongAnswer(Exception):
    """A system answered a request with something other than the sum of its row."""


class Rows:
    """The rows of one client, one region for each request that it may have outstanding."""

    def __init__(self, client: int, outstanding: int) -> None:
        random_bytes = random.Random(_SEED).randbytes(REGION_WORDS * 8)
        self._original = np.frombuffer(random_bytes, np.uint64)
        self._sums = np.concatenate(([np.uint64(0)], np.cumsum(self._original, dtype=np.uint64)))
        self._words = np.tile(self._original, (outstanding, 1))
        self._bytes = self._words.view(np.uint8)
        self._offsets = [0] * outstanding
        self._expected = [0] * outstanding
        self._number = client << 40
        self._choice = random.Random(client)

    def fresh(self, slot: int) -> npt.NDArray[np.uint8]:
        """A row, 150,528 bytes, that nobody has sent before; valid until the slot's next one."""
        words = self._words[slot]
        before = self._offsets[slot]
        words[before] = self._original[before]

        offset = self._choice.randrange(REGION_WORDS - ROW_WORDS)
        self._number += 1
        stamp = (self._number * _SCRAMBLE) & _WORD
        rest = self._sums.item(offset + ROW_WORDS) - self._sums.item(offset + 1)
        words[offset] = stamp
        self._offsets[slot] = offset
        self._expected[slot] = (rest + stamp) & _WORD
        return self._bytes[slot, 8 * offset : 8 * offset + ROW_BYTES]

    def answer_into(self, slot: int, answer: npt.NDArray[np.uint64]) -> None:
        """Make this the answer to the slot's last row, as far as `check` looks."""
        answer[0] = expected = self._expected[slot]
        answer[-1] = (expected + ANSWER_WORDS - 1) & _WORD

    def check(self, slot: int, answer: npt.NDArray[np.uint64]) -> None:
        """Raise WrongAnswer unless this is the answer to the slot's last row."""
        expected = self._expected[slot]
        last = (expected + ANSWER_WORDS - 1) & _WORD
        if answer.size != ANSWER_WORDS or answer.item(0) != expected or answer.item(-1) != last:
            raise WrongAnswer(f"expected {expected}, got {answer.ravel()[:1]} of {answer.size}")
