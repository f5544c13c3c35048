"""A process for `test_remat`: `python -m tests.train.peak_of_a_step DUMPS`.

Prints bytes as JSON, of a step with recomputing and of one without: how far it raises the process's
peak in a `tf.function`, and what XLA allots for it, as it writes into the folder that XLA_FLAGS
names. The step that should take less goes first: a peak never falls.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from penstock.train.remat import remat
from tests.train.test_remat import _residual


def main() -> None:
    model = _residual(blocks=8, width=16, side=48, dropout=0)
    rows = tf.zeros((64, 48, 48, 3), tf.uint8)
    ways = {"remat": remat(model, True), "plain": model}
    plain = {name: tf.function(_step(model, forward)) for name, forward in ways.items()}
    for step in plain.values():
        step.get_concrete_function(rows)
    found: dict[str, dict[str, int]] = {}
    before = _peak()
    for name, step in plain.items():
        step(rows)
        found[name] = {"function": _peak() - before}
    for name, forward in ways.items():
        compiled = tf.function(_step(model, forward), jit_compile=True)
        known = set(_dumps())
        compiled.experimental_get_compiler_ir(rows)(stage="optimized_hlo")
        texts = [path.read_text() for path in set(_dumps()) - known]
        allotted = [re.findall(r"Total bytes used: (\d+)", text) for text in texts]
        found[name]["xla"] = max(int(number) for numbers in allotted for number in numbers)
    print(json.dumps(found))


def _step(model: Any, forward: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(batch, training=True) ** 2)
        return tape.gradient(loss, [one.value for one in model.trainable_variables])

    return step


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _dumps() -> list[Path]:
    return list(Path(sys.argv[1]).glob("*buffer-assignment.txt"))


if __name__ == "__main__":
    main()
