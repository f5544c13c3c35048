"""Loading a model: whatever its source is, a `Runnable` comes out, or a `ModelLoadError`."""

from __future__ import annotations

import traceback

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.model.function import Function, Runnable
from penstock.model.source import resolve


def load(model: Model) -> Runnable:
    """Find, import and set up a model. Whatever goes wrong becomes a `ModelLoadError`."""
    source = str(model.source)
    try:
        return Function(resolve(source), model.spec, model.max_batch, model.batched, source)
    except ModelLoadError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = "".join(traceback.format_exception_only(error)).strip()
        raise ModelLoadError(
            f"model {model.name!r} ({source}): {last}\0{traceback.format_exc()}"
        ) from error
