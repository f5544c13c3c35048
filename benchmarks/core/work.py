"""The function that every system serves: it reads each byte of a batch and answers at once.

An answer is 500 uint64 words (4,000 bytes): the sum of its row, counted on from there.
"""

import numpy as np
import numpy.typing as npt

ROW_SHAPE = (224, 224, 3)
ROW_BYTES = 224 * 224 * 3
ROW_WORDS = ROW_BYTES // 8
ANSWER_WORDS = 500

_STEPS = np.arange(ANSWER_WORDS, dtype=np.uint64)


def answer(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Answer a batch of shape (n, 150528) with an array of shape (n, 500)."""
    sums: npt.NDArray[np.uint64] = rows.view(np.uint64).sum(axis=1, dtype=np.uint64)
    return np.add(sums[:, np.newaxis], _STEPS)
