"""Settings: small frozen dataclasses, checked when they are made, refused when a name is unknown.

`Model` says what is run, `EngineConfig` how. Both go to the engine's and the workers' processes as
JSON (`to_json`, `from_json`), and the command's flags are read off their fields (`help` in a
field's metadata), so a setting is written down once.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

from penstock.errors import ConfigError
from penstock.spec import ModelSpec, TensorSpec, check_name, pads_of, signature_of

COMPILE_MODES = ("function", "frozen", "xla", "frozen-xla")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16", "int8", "auto")
WARM = ("all", "largest")
DEFAULT_BATCH = 32  # rows, where it is not found by measurement


Settings = TypeVar("Settings")


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def listing_settings(settings: type[Settings]) -> type[Settings]:
    """Add what each field means, and its default, to the docstring of a dataclass."""
    lines = [
        textwrap.fill(
            f"- `{each.name}` ({each.default!r}): {each.metadata['help']}",
            width=96,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for each in dataclasses.fields(settings)  # type: ignore[arg-type]
        if "help" in each.metadata
    ]
    settings.__doc__ = "\n".join([inspect.cleandoc(settings.__doc__ or ""), "", *lines])
    return settings


@listing_settings
@dataclass(frozen=True)
class Model:
    """A model and how it may be run.

    `source` is one of

    - a Keras file (`.keras`, `.h5`) or a SavedModel folder
    - a Keras model of this process; the engine gets a copy of what it is when the engine starts
    - `"module:callable"`, `"path/file.py:callable"`, or a function that another process can import

    What a callable is decides how it is used. A Keras model or a `tf.function` is compiled. A class
    is instantiated once in each worker, and a function without required parameters is called once:
    what comes out is the model. Any other function is called with an array (or a dict of arrays,
    when the caller passed a dict) whose first axis is rows, and returns one; the arrays that it
    gets are the worker's batch buffers: read them, do not keep them.

    `inputs` declares what callers send: `("float32", (224, 224, 3))`, or a dict of such by name.
    TensorFlow models mostly know; `preprocess` needs it. `outputs` declares what comes back, in the
    same way. A single output is answered as an array, several as a dict. `pad` (a `Pad`, or
    several) lets rows of different lengths share batches.
    `name` is what callers choose it by, by default the file's or the function's.

    Raises `ConfigError` for a setting that is impossible. The other settings, with their defaults:
    """

    source: Any
    name: str = ""
    inputs: Any = None
    outputs: Any = None
    max_batch: int = _setting(
        0, "the largest number of rows in a batch (0: 32 on CPUs, measured on GPUs)"
    )
    batched: bool = _setting(
        True,
        "whether rows are independent of each other; if not: no batching, one worker, no retry",
    )
    signature: str = _setting("", "which signature of a SavedModel (default: serving_default)")
    preprocess: str | Callable[..., Any] = _setting(  # noqa: RUF009
        "", "a TensorFlow function (module:function) from what callers send to the model's inputs"
    )
    postprocess: str | Callable[..., Any] = _setting(  # noqa: RUF009
        "", "a TensorFlow function (module:function) from the model's outputs to the answers"
    )
    unsafe: bool = _setting(False, "whether code in a model's file (Lambda layers) may run")
    compile: str = _setting(
        "auto", f"how a TensorFlow model is compiled: auto (measured), {', '.join(COMPILE_MODES)}"
    )
    precision: str = _setting(
        "", f"what a Keras model computes with: {', '.join(PRECISIONS)} (default: as it was saved)"
    )
    ladder: tuple[int, ...] = _setting(
        (), "the sizes that batches are padded to (default: 1, 2, 4, ... where sizes are compiled)"
    )
    warm: str = _setting(
        "all",
        "which of those sizes are used: all; largest, that one alone, which is ready sooner; or a "
        "number of rows, for the largest size up to that",
    )
    tolerance: float = _setting(
        0.0,
        "how far a compile mode's answers may be off, as a share of their size "
        "(0: 0.001, and 0.02 in half precision or on a GPU)",
    )
    sample: str = _setting(
        "", "'module:function' that returns a few rows of input, to warm up and measure with"
    )

    pad: Any = ()
    weight: float = _setting(
        1.0, "its share of a busy device, in proportion to the other models' weights"
    )

    def __post_init__(self) -> None:
        put = object.__setattr__
        live = is_keras_model(self.source)
        if not live:
            put(self, "source", source_text(self.source))
        default = _plain(self.source.name) if live else _default_name(self.source)
        put(self, "name", check_name(self.name or default, "model name"))
        put(self, "inputs", signature_of(self.inputs))
        put(self, "outputs", signature_of(self.outputs))
        for step in ("preprocess", "postprocess"):
            if getattr(self, step):
                put(self, step, source_text(getattr(self, step)))
        _check_count("max_batch", self.max_batch, 0, 65_536)
        if self.compile not in ("auto", *COMPILE_MODES):
            known = ", ".join(("auto", *COMPILE_MODES))
            raise ConfigError(f"compile: expected one of {known}; got {self.compile!r}")
        if self.precision not in ("", *PRECISIONS):
            known = ", ".join(PRECISIONS)
            raise ConfigError(f"precision: expected one of {known}; got {self.precision!r}")
        put(self, "ladder", _ladder(self.ladder, self.max_batch))
        if self.ladder:
            put(self, "max_batch", self.ladder[-1])
        put(self, "warm", str(self.warm))
        if self.warm not in WARM and not (self.warm.isdecimal() and int(self.warm)):
            kinds = f"one of {', '.join(WARM)}, or a number of rows"
            raise ConfigError(f"warm: expected {kinds}; got {self.warm!r}")
        _check_range("tolerance", self.tolerance, 0.0, 1.0)
        put(self, "sample", source_text(self.sample) if self.sample else "")
        _check_range("weight", self.weight, 1e-3, 1e3)
        put(self, "pad", pads_of(self.pad))

    @property
    def spec(self) -> ModelSpec:
        """What the model declares of its inputs and outputs."""
        return ModelSpec(self.inputs, self.outputs)


@listing_settings
@dataclass(frozen=True)
class EngineConfig:
    """How an engine runs: where it is found, how many workers, what it allows, when it gives up.

    `name` is what `penstock.connect` takes. Sizes in bytes may be given as `"4G"`, too. Raises
    `ConfigError` for a setting that is impossible. The others, with their defaults:
    """

    name: str = ""
    folder: str = _setting("", "where the engine's socket lies (default: a folder of the user's)")
    group: str = _setting("", "a group whose members may connect too")
    devices: str | tuple[str, ...] = _setting(
        "auto", "where models run: auto (every GPU, else the CPU), cpu, gpu, or gpu:0,gpu:1"
    )
    workers: int = _setting(0, "how many worker processes (0: one for each device)")
    gpu_memory: int = _setting(
        0, "bytes of a GPU's memory that a worker may take (0: what is free)"
    )
    pinned_memory: int = _setting(
        8 << 30, "the most bytes of clients' memory that a worker pins for its GPU"
    )
    client_memory: int = _setting(1 << 30, "bytes of shared memory that one client may hold")
    client_requests: int = _setting(4096, "requests that one client may have outstanding")
    queue_rows: int = _setting(
        65_536,
        "rows that may wait; more are refused, except of clients with less than their share",
    )
    run_timeout: float = _setting(120.0, "seconds a batch may run before its worker is replaced")
    load_timeout: float = _setting(600.0, "seconds a worker may take to load its models")
    drain_timeout: float = _setting(
        10.0, "seconds that a closing engine may take to answer what is queued"
    )
    restarts: int = _setting(10, "worker restarts in a row before the engine waits for a refill")
    restart_refill: float = _setting(6.0, "seconds until one more restart is allowed")

    def __post_init__(self) -> None:
        if self.name:
            check_name(self.name, "engine name")
        object.__setattr__(self, "devices", _devices(self.devices))
        _check_count("workers", self.workers, 0, 1024)
        for name in ("gpu_memory", "pinned_memory", "client_memory"):
            if isinstance(getattr(self, name), str):  # "4G", as in `claim_gpu` and in flags
                object.__setattr__(self, name, parse_bytes(getattr(self, name)))
        _check_count("gpu_memory", self.gpu_memory, 0, 1 << 46)
        _check_count("pinned_memory", self.pinned_memory, 0, 1 << 46)
        _check_count("client_memory", self.client_memory, 1 << 16, 1 << 46)
        _check_count("client_requests", self.client_requests, 1, 1 << 20)
        _check_count("queue_rows", self.queue_rows, 1, 1 << 40)
        _check_count("restarts", self.restarts, 0, 1 << 20)
        for name in ("run_timeout", "load_timeout", "restart_refill"):
            _check_range(name, getattr(self, name), 0.01, 1e9)
        _check_range("drain_timeout", self.drain_timeout, 0.0, 1e9)


def models_of(value: Any) -> tuple[Model, ...]:
    """The models that people name: one source or `Model`, a list of them, or a dict by name."""
    if isinstance(value, Mapping):
        named = [_model(source, str(name)) for name, source in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        named = [_model(source) for source in value]
    else:
        named = [_model(value)]
    if not named:
        raise ConfigError("an engine needs at least one model")
    names = [model.name for model in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two models are named {twice[0]!r}; give one of them another name")
    return tuple(named)


def _model(value: Any, name: str = "") -> Model:
    if isinstance(value, Model):
        return dataclasses.replace(value, name=name) if name else value
    return Model(value, name=name)


def is_keras_model(value: Any) -> bool:
    """Whether this is a Keras model, of Keras 3 or of `tf_keras`. Imports neither."""
    modules = (sys.modules.get(name) for name in ("keras", "tf_keras"))
    kinds = (getattr(module, "Model", None) for module in modules)
    return any(isinstance(kind, type) and isinstance(value, kind) for kind in kinds)


def source_text(source: Any) -> str:
    """How another process finds this source: a path, or `module:function`."""
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        if not source:
            raise ConfigError("an empty source; expected 'module:callable' or a path")
        path, colon, attribute = source.rpartition(":")
        if not colon or os.path.exists(source):
            return os.path.abspath(source)
        if path.endswith(".py"):
            return f"{Path(path).resolve()}:{attribute}"
        return source
    module = getattr(source, "__module__", None)
    qualified = getattr(source, "__qualname__", "")
    if not callable(source) or module is None or not qualified:
        raise ConfigError(
            f"a model's source is a text, a function or a Keras model; got {type(source).__name__}"
        )
    if "<" in qualified:
        raise ConfigError(
            f"{qualified!r} cannot be imported by a worker: "
            "move it to the top level of a module (no lambda, no inner function)"
        )
    if module in ("__main__", "__mp_main__"):
        raise ConfigError(
            f"{qualified!r} is defined in the script that runs, which a worker does not run again: "
            f"pass 'file.py:{qualified}', or move it into a module"
        )
    if not _is_found(source, module, qualified):
        raise ConfigError(
            f"{source!r} is not what a worker would find as '{module}:{qualified}': give it a name "
            "of its own at the top level of a module, and pass that as 'module:name'"
        )
    return f"{module}:{qualified}"


def _is_found(source: Any, module: str, qualified: str) -> bool:
    """Whether whoever imports that name gets the same, and not what was wrapped or bound in it."""
    found: Any = sys.modules.get(module)
    for name in qualified.split("."):
        found = getattr(found, name, None)
    return found is source or (isinstance(found, MethodType) and found == source)


def _default_name(source: str) -> str:
    path, _, attribute = source.rpartition(":")
    return _plain(attribute if path else Path(source).stem)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("-._")[:64] or "model"


def _ladder(sizes: Any, max_batch: int) -> tuple[int, ...]:
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence):
        raise ConfigError(f"ladder: expected sizes, for example (1, 8, 32); got {sizes!r}")
    if len(sizes) > 64:
        raise ConfigError(f"ladder: at most 64 sizes, got {len(sizes)}")
    for size in sizes:
        _check_count("ladder", size, 1, max_batch or 65_536)
    return tuple(sorted({*sizes, max_batch} - {0})) if sizes else ()


def _devices(value: Any) -> str | tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"devices: expected names such as cpu or gpu:0; got {value!r}")
    names = tuple(name.strip() for name in names if name.strip())
    if not names:
        raise ConfigError("devices: expected at least one, for example cpu or gpu:0; got none")
    return names[0] if len(names) == 1 else names


def _check_count(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    _check_range(name, value, low, high)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name}: expected a number, got {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{name}: expected {low:g} to {high:g}, got {value:g}")


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """`"512M"`, `"4G"`, `"1.5GiB"` or a plain number, in bytes (powers of 1024)."""
    match = _SIZE.fullmatch(str(text))
    if not match:
        raise ConfigError(f"a size is a number with K, M, G or T, for example 4G; got {text!r}")
    number, unit, _ = match.groups()
    return int(float(number) * 1024 ** " kmgt".index(unit.lower() or " "))


def to_json(models: Sequence[Model], config: EngineConfig, **extra: Any) -> str:
    """What a started process reads of its settings."""
    return json.dumps(
        {
            "models": [dataclasses.asdict(model) for model in models],
            "engine": dataclasses.asdict(config),
            **extra,
        }
    )


def from_json(text: str) -> tuple[tuple[Model, ...], EngineConfig, dict[str, Any]]:
    """The inverse of `to_json`: models, engine config, and the rest."""
    data = json.loads(text)
    models = tuple(_model_of_json(entry) for entry in data.pop("models"))
    config = EngineConfig(**data.pop("engine"))
    return models, config, data


def _model_of_json(entry: dict[str, Any]) -> Model:
    for side in ("inputs", "outputs"):
        if entry[side] is not None:
            entry[side] = tuple(TensorSpec(*tensor) for tensor in entry[side])
    return Model(**entry)
