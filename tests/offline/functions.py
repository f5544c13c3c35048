"""Models for offline jobs, named as `file.py:function`: plain numpy, so that workers start fast."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np


def scores(x):
    """A few numbers of each row, which depend on all of it and on nothing else."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    return np.stack([flat.sum(1), flat.max(1), (flat * np.arange(flat.shape[1])).sum(1)], 1)


def same(x):
    return x


def named(x):
    y = scores(x)
    return {"total": y[:, 0], "rest": y[:, 1:].astype(np.float32)}


def picky(x):
    """Raises on rows that begin with a negative number."""
    if (x[:, 0] < 0).any():
        raise ValueError("a negative row")
    return scores(x)


def no_blank(x):
    """Raises on rows of zeros."""
    if not x.reshape(len(x), -1).any(1).all():
        raise ValueError("a blank row")
    return scores(x)


def each_its_own(x):
    """Raises on every row, with its number."""
    raise ValueError(f"row {x[0, 0]:g} of {len(x)}")


def on_a_bad_card(x):
    """Ends its process, whatever it is given, while the card is bad."""
    if Path(os.environ["OFFLINE_BAD"]).exists():
        os._exit(1)
    return scores(x)


def counted(x):
    """Writes down how many rows it was given; takes its time."""
    with open(os.environ["OFFLINE_COUNT"], "ab", buffering=0) as file:
        file.write(b"%d\n" % len(x))
    time.sleep(float(os.environ.get("OFFLINE_SLEEP", "0")))
    return scores(x)


def held(x):
    """Answers when the gate is open."""
    Path(os.environ["OFFLINE_GATE"] + ".reached").touch()
    while not Path(os.environ["OFFLINE_GATE"]).exists():
        time.sleep(0.002)
    return scores(x)


def held_after_some(x):
    """Answers a few batches at once, and more when the gate is open."""
    with open(os.environ["OFFLINE_GATE"] + ".given", "ab", buffering=0) as file:
        file.write(b"x")
        few = file.tell() < 5
    return scores(x) if few else held(x)


def texts(x):
    return np.array([len(row) for row in x.reshape(-1).tolist()], np.int64)


def best(y):
    """For `map`: a name for each row."""
    return {"best": np.array([f"class {row.argmax()}" for row in y], object)}


def best_of_positive(y):
    if (y[:, 0] < 10).any():
        raise ValueError("too small")
    return y


def one_more(outputs):
    """For `map`: changes what it is given, and only then raises, because of one row."""
    outputs["total"] += 1
    if (outputs["total"] > 20).any():
        raise ValueError("too large")
    return {"total": outputs.pop("total")}


def whole_or_not(y):
    """For `map`: whole numbers, or fractions for what is large."""
    first = y[:, 0]
    return {"level": (first / 2 if first.min() > 40 else first.astype(int) // 2)}


def numbers_or_texts(y):
    first = y[:, 0]
    return {"level": first.astype(str) if first.min() > 40 else first}


def names_of_all_widths(y):
    """For `map`: texts as numpy has them, of batches' own widths, or as objects."""
    found = np.array(["x" * int(value) for value in y[:, 0]])
    return {"name": found if y[0, 0] % 3 else found.astype(object)}


def short_fractions(y):
    import ml_dtypes

    return (y[:, :2] / 3).astype(ml_dtypes.bfloat16)


def numbers_as_texts(y):
    return y[:, 0].round(2).astype(str)  # as wide as any number could be


def complex_numbers(y):
    return y[:, 0] * (1 + 2j)


def masked(y):
    return {"y": np.ma.masked_greater(y[:, 0], 60)}


def rows():
    """A stream of rows, of unknown length."""
    for number in range(1000):
        yield np.full(3, number, np.float32)


def breaking_off():
    """A stream that raises in its middle."""
    for number in range(100):
        if number == 70:
            raise ZeroDivisionError("no more")
        yield np.full(3, number, np.float32)


def broken():
    """A stream that raises at its first row."""
    raise LookupError("nothing there")
    yield


def names_by_row(y):
    """For `map`: outputs that are called one thing or another."""
    if len(y) > 1:
        raise ValueError("one by one")
    return {"even" if int(y[0, 0]) % 2 else "odd": y[:, 0]}


def best_two(y):
    """For `postprocess`: part of the compiled graph."""
    import tensorflow as tf

    found = tf.math.top_k(y, 2)
    return {"score": found.values, "place": found.indices}


def network():
    """A Keras model of small pictures; only the worker imports TensorFlow."""
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Flatten()(inputs / 255.0)
    return keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(x))
