"""`fit`: from what the caller has to a run of the loop, and back to what the caller gets.

options ─▶ place ─▶ model in its scope ─▶ feed ─▶ step ─▶ loop ─▶ History
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.train.history import History
from penstock.train.options import Options, asked


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    validation_data: Any = None,
    callbacks: Any = None,
    shuffle: bool = True,
    strategy: Any = "auto",
    accumulate: int = 1,
    micro_batch: int | str | None = None,
    precision: str | None = None,
    remat: bool | str | Sequence[str] = False,
    jit: bool | str = "auto",
    clip_norm: float | None = None,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
    initial_epoch: int = 0,
    verbose: Any = "auto",
    seed: int | None = None,
    shard: str = "auto",
    reduce: str = "auto",
    pack_bytes: int = 32 << 20,
    timeout: float | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    keep: int = 3,
    checkpoint_every: int | None = None,
    resume: bool = True,
    deterministic: bool = False,
    profile: str | os.PathLike[str] | None = None,
) -> History:
    """Train a compiled Keras model on the devices and machines that there are.

    What is trained, and on what:

    - `model`: a compiled Keras model, or a function without arguments that makes one
    - `x`, `y`, `sample_weight`: arrays, or dicts and lists of them; a `tf.data.Dataset`, a
      `PyDataset` or a generator; or what `penstock.data` opens, where `y` names a column
    - `batch_size`: the global batch: the rows of one change of the weights, whatever the number of
      workers, devices and micro-batches; where none is given, the data's own, or 32
    - `shuffle`: whether rows come in an order of their own each epoch, drawn from `seed`
    - `epochs`, `initial_epoch`, `validation_data`, `validation_batch_size`, `validation_freq`,
      `callbacks`, `class_weight`, `verbose`: as in Keras' `fit`

    On what devices, and how:

    - `strategy`: "auto", "one", "mirrored", "multiworker", "parameter_server", or one of
      `tf.distribute`
    - `shard`: who reads which rows: "auto", "data", "file", "off" or "chief"
    - `reduce`, `pack_bytes`: the all-reduce ("auto", "nccl", "ring", "hierarchical"), and how much
      travels at a time
    - `timeout`: seconds for which other processes are waited for (600)
    - `accumulate`: micro-batches of a step; or `micro_batch`: rows of one, or "auto"
    - `precision`: None (as the model is), "float32", "mixed_float16" or "mixed_bfloat16"
    - `remat`: what is computed again rather than kept: True, False, "auto" or names of layers
    - `jit`: whether the step is compiled by XLA: True, False or "auto"
    - `clip_norm`: the largest norm of all gradients together

    What is kept:

    - `checkpoints`: a folder; a run that finds some there is taken up again, unless `resume` is
      False. `keep` of them stay; `checkpoint_every`: steps between two, beside those of the epochs
    - `deterministic`: the same weights, bit by bit, after an interruption (on CPUs)
    - `profile`: a folder for a profile of where the time goes

    Returns a `History` with the trained model. Raises `ConfigError` for what cannot be done as it
    was asked for, and `TrainingError` when training cannot go on. `docs/train.md` says more.
    """
    given = dict(locals())
    beside = ("model", "x", "y", "validation_data", "callbacks", "sample_weight")
    options = asked(**{name: value for name, value in given.items() if name not in beside})
    data = (x, y, sample_weight)
    return _fit(model, data, validation_data, callbacks, options)


def _fit(
    model: Any, data: tuple[Any, Any, Any], validation_data: Any, callbacks: Any, options: Options
) -> History:
    from penstock.train.running import run

    began = time.monotonic()
    history = run(model, data, validation_data, callbacks, options)
    history.report["seconds"]["all"] = round(time.monotonic() - began, 3)
    if options.summary and history.report["worker"] == 0:
        _write_summary(Path(options.summary), history.report)
    return history


def _write_summary(path: Path, report: dict[str, Any]) -> None:
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    staged.write_text(json.dumps(report, indent=2) + "\n")
    os.replace(staged, path)
