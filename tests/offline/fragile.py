"""A source that ends whoever decodes certain of its rows, as a broken file may end a decoder."""

from __future__ import annotations

import os
import signal

import numpy as np

from penstock.data.source import Source, chunk_of
from penstock.spec import TensorSpec


class Fragile(Source):
    """Rows that are decoded, of which some end the process that does it."""

    decodes = True
    rows = 40
    signature = (TensorSpec("float32", (3,)),)

    def read(self, start, stop, out=None):
        stop = min(stop, self.rows)
        if {11, 13} & set(range(start, stop)):
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = np.arange(start, stop)
        columns = {"": np.repeat(numbers[:, None], 3, 1).astype(np.float32)}
        return chunk_of(start, columns, self.keys(start, stop), {})

    def keys(self, start, stop):
        return np.array([f"row {row}" for row in range(start, stop)], object)

    def fingerprint(self):
        return "fragile"


def rows():
    return Fragile()
