"""Loading a model: whatever its source is, a `Runnable` comes out, or a `ModelLoadError`.

A plain function is run as it is; a TensorFlow model becomes a `Graph` first (`assemble`), which is
then compiled. TensorFlow is imported only for the latter.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.config import Model, is_keras_model
from penstock.devices.cards import amount
from penstock.errors import DeviceMemoryError, ModelLoadError
from penstock.model.function import Function, Runnable
from penstock.model.impatience import fail_at_once
from penstock.model.live import in_memory
from penstock.model.quiet import quieten
from penstock.model.shortage import is_out_of_memory
from penstock.model.source import check_place, is_path, resolve
from penstock.model.structure import needs_arguments


def load(
    model: Model, *, thorough: bool = False, tell: Callable[[str], None] = lambda text: None
) -> Runnable:
    """Find, import and set up a model. Whatever goes wrong becomes a `ModelLoadError`.

    But for too little memory on its device: that is a `DeviceMemoryError`. `thorough`: measure all
    that `tune` wants to know. `tell` is told how far it is.
    """
    quieten()
    fail_at_once()
    try:
        return _load(model, thorough, tell)
    except ModelLoadError as error:
        if error.__cause__ is None or "\0" in str(error):
            raise
        full = "".join(traceback.format_exception(error))
        raise ModelLoadError(f"{error}\0{full}") from error
    except DeviceMemoryError as error:
        raise DeviceMemoryError(f"model {model.name!r} ({model.source}): {error}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if is_out_of_memory(error):
            raise DeviceMemoryError(
                f"model {model.name!r} ({model.source}) does not fit: {_room_told()}"
            ) from error
        last = "".join(traceback.format_exception_only(error)).strip()
        raise ModelLoadError(
            f"model {model.name!r} ({model.source}): {last}\0{traceback.format_exc()}"
        ) from error


def _room_told() -> str:
    from penstock.model.circumstances import device_kind
    from penstock.model.peak import memory_of

    memory = memory_of(device_kind())
    limit = memory.limit()
    if not limit:
        return "its device has too little memory"
    return f"TensorFlow may take {amount(limit)} here, and had taken {amount(memory.held())}"


def _load(model: Model, thorough: bool, tell: Callable[[str], None]) -> Runnable:
    found = model.source
    if isinstance(found, str) and is_path(found):
        if not in_memory(found):
            check_place(found)
    elif isinstance(found, str):
        found = _made(resolve(found))
        if not _is_tensorflow(found, model.inputs is not None or bool(model.preprocess)):
            _refuse_steps(model)
            return Function(found, model.spec, model.max_batch, model.batched, str(model.source))
    from penstock.model.assemble import assemble
    from penstock.model.compiled import Compiled
    from penstock.model.stored import restore

    restored = None if thorough else restore(model, found)
    if restored is not None:
        graph = replace(restored[0], at=lambda precision: assemble(model, found).at(precision))
        return Compiled(graph, model, restored[1])
    tell("loading the model")
    return Compiled(assemble(model, found), model, thorough=thorough, tell=tell)


def _made(found: Any) -> Any:
    """A class is instantiated, and a function that takes nothing is called: they make the model."""
    if isinstance(found, type):
        return found()
    if (inspect.isroutine(found) or isinstance(found, partial)) and not needs_arguments(found):
        return found()
    return found


def _is_tensorflow(found: Any, declared: bool) -> bool:
    """Whether this is TensorFlow's to run. Only what has imported TensorFlow can be."""
    if is_keras_model(found):
        return True
    if "tensorflow" not in sys.modules:
        return False
    from penstock.model.traceable import is_traceable

    return is_traceable(found, declared)


def _refuse_steps(model: Model) -> None:
    for step in ("preprocess", "postprocess", "signature"):
        if getattr(model, step):
            raise ModelLoadError(
                f"model {model.name!r}: {step} is for TensorFlow models; "
                f"{model.source} is a plain function"
            )
