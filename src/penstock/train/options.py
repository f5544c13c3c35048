"""What may be asked of `fit`, checked before anything starts. Imports no TensorFlow.

What the launcher has to say comes by the environment, and is the default of what is not given:
PENSTOCK_TRAIN_CHECKPOINTS and PENSTOCK_TRAIN_PROFILE (folders), PENSTOCK_TRAIN_SUMMARY (a file for
the chief's report), PENSTOCK_TRAIN_ATTEMPT (how often it was started again), PENSTOCK_TRAIN_TIMEOUT
(how long others are waited for). A script that calls `fit` several times has a folder for each:
what is named, and in it `fit-2`, `fit-3`, …
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from penstock.errors import ConfigError

STRATEGIES = ("auto", "one", "mirrored", "multiworker", "parameter_server")
REDUCTIONS = ("auto", "nccl", "ring", "hierarchical")
PRECISIONS = (None, "float32", "mixed_float16", "mixed_bfloat16")
SHARDS = ("auto", "data", "file", "off", "chief")
TIMEOUT = 600.0  # seconds
_PACK_BYTES = 32 << 20
_FOLDERS = ("checkpoints", "profile")
_calls: collections.Counter[str] = collections.Counter()  # of `fit`, by the environment's folder


@dataclass(frozen=True, kw_only=True)
class Options:
    """All of `fit`'s settings but the model and the data."""

    batch_size: int | None = None  # the data's own, else 32
    epochs: int = 1
    initial_epoch: int = 0
    shuffle: bool = True
    seed: int | None = None
    shard: str = "auto"
    class_weight: Mapping[int, float] | None = None
    validation_batch_size: int | None = None
    validation_freq: int = 1
    verbose: Any = "auto"
    strategy: Any = "auto"
    reduce: str = "auto"
    pack_bytes: int = _PACK_BYTES
    timeout: float = TIMEOUT
    accumulate: int = 1
    micro_batch: int | str | None = None
    precision: str | None = None
    remat: bool | str | Sequence[str] = False
    jit: bool | str = "auto"
    clip_norm: float | None = None
    checkpoints: str | os.PathLike[str] | None = None
    keep: int = 3
    checkpoint_every: int | None = None
    resume: bool = True
    deterministic: bool = False
    profile: str | os.PathLike[str] | None = None
    summary: str | None = None
    attempt: int = 0  # how often the launcher has started this again

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "keep", "pack_bytes", "validation_freq"):
            _at_least(1, name, getattr(self, name))
        _at_least(0, "initial_epoch", self.initial_epoch)
        for name in ("batch_size", "validation_batch_size", "checkpoint_every"):
            if getattr(self, name) is not None:
                _at_least(1, name, getattr(self, name))
        if self.strategy is None or isinstance(self.strategy, str):
            _one_of(STRATEGIES, "strategy", self.strategy)
        _one_of(REDUCTIONS, "reduce", self.reduce)
        _one_of(PRECISIONS, "precision", self.precision)
        _one_of(SHARDS, "shard", self.shard)
        if self.jit not in (True, False, "auto"):
            raise ConfigError(f"jit must be True, False or 'auto', not {self.jit!r}")
        if isinstance(self.remat, str) and self.remat != "auto":
            raise ConfigError(
                f"remat must be True, False, 'auto' or names of layers, not {self.remat!r}"
            )
        if self.clip_norm is not None:
            _above_0("clip_norm", self.clip_norm)
        _above_0("timeout", self.timeout, " seconds")
        if self.seed is not None:
            _at_least(0, "seed", self.seed)
        self._check_micro_batch()

    def _check_micro_batch(self) -> None:
        if self.micro_batch is None:
            return
        if isinstance(self.micro_batch, str):
            if self.micro_batch != "auto":
                raise ConfigError(
                    f"micro_batch must be 'auto' or a number of rows, not {self.micro_batch!r}"
                )
        else:
            _at_least(1, "micro_batch", self.micro_batch)
        if self.accumulate != 1:
            raise ConfigError(
                "accumulate says how many micro-batches a step has, micro_batch how many rows one "
                f"has: give one of them, not accumulate={self.accumulate} "
                f"and micro_batch={self.micro_batch!r}"
            )

    def params(self, steps: int | None) -> dict[str, Any]:
        """As callbacks are told them, in Keras' own words."""
        verbose = 1 if self.verbose == "auto" else self.verbose
        return {"verbose": verbose, "epochs": self.epochs, "steps": steps}

    @property
    def trainings(self) -> int:
        """How often the data is gone through."""
        return max(self.epochs - self.initial_epoch, 0)

    @property
    def validations(self) -> int:
        """How often that of validation is."""
        return max(
            self.epochs // self.validation_freq - self.initial_epoch // self.validation_freq, 0
        )

    def micros(self, batch_size: int, workers: int, replicas: int) -> int:
        """Micro-batches a step on each of so many replicas; 1 where that is yet to be measured."""
        if self.micro_batch is None or isinstance(self.micro_batch, str):
            return self.accumulate
        rows = -(-batch_size // (workers * replicas))
        return -(-rows // self.micro_batch)


def asked(environ: Mapping[str, str] = os.environ, **given: Any) -> Options:
    """The options as given, and what the environment says of those that were not."""
    given = {name: _plain(value) for name, value in given.items()}
    known = {field.name for field in dataclasses.fields(Options)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigError(f"fit has no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
    told: dict[str, Any] = {
        name: variable
        for name in ("checkpoints", "profile", "summary")
        if given.get(name) is None and (variable := environ.get(f"PENSTOCK_TRAIN_{name.upper()}"))
    }
    if given.get("timeout") is None:
        told["timeout"] = waited(environ)
    told["attempt"] = int(environ.get("PENSTOCK_TRAIN_ATTEMPT") or 0)
    options = Options(**{**given, **told})
    folders: dict[str, Any] = {name: _of_this_call(told[name]) for name in _FOLDERS if name in told}
    return dataclasses.replace(options, **folders)


def waited(environ: Mapping[str, str] = os.environ) -> float:
    """How many seconds others are waited for, where the script does not say, or not yet."""
    return float(environ.get("PENSTOCK_TRAIN_TIMEOUT") or TIMEOUT)


def _of_this_call(folder: str) -> str:
    """The first call of a process has the folder itself, each other one a folder in it."""
    _calls[folder] += 1
    return folder if _calls[folder] == 1 else os.path.join(folder, f"fit-{_calls[folder]}")


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's, as JSON wants them."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _at_least(least: int, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ConfigError(f"{name} must be a whole number from {least} on, not {value!r}")


def _above_0(name: str, value: Any, unit: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ConfigError(f"{name} must be above 0{unit}, not {value!r}")


def _one_of(choices: Sequence[Any], name: str, value: Any) -> None:
    if value not in choices:
        named = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name} must be one of {named}, not {value!r}")
