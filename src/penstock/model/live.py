"""A Keras model of the caller's process, on its way to the workers.

It is written as an archive into an anonymous memory file, whose descriptor the engine inherits and
hands to every worker that it starts. The file has no name, so nothing is left behind by any death;
its memory is held, once for all, as long as the engine lives.

    Model(keras_model) ──archived──▶ Model("/proc/self/fd/7") + descriptor 7 ──▶ engine ──▶ workers
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.model.contents import foreign_names, holds_code

_FOLDER = "/proc/self/fd/"
_LABEL = "model:"
ADVICE = (
    "write a function that makes or loads it and returns it, "
    "and pass 'module:function' or 'file.py:function'"
)


class Nameless(io.FileIO):
    """An archive without a name, which Keras takes for a file or for a path, as it needs."""

    def __str__(self) -> str:
        return "model.keras"

    def __fspath__(self) -> str:
        return f"{_FOLDER}{self.fileno()}"


def in_memory(source: str) -> bool:
    """Whether this source is such an archive."""
    return source.startswith(_FOLDER)


def handed_on(descriptors: Mapping[str, int]) -> dict[str, int]:
    """Of a process's inherited descriptors, those of archives."""
    return {name: number for name, number in descriptors.items() if name.startswith(_LABEL)}


@contextlib.contextmanager
def archived(models: Sequence[Model]) -> Iterator[tuple[tuple[Model, ...], dict[str, int]]]:
    """The models with texts for sources, and the descriptors that go with them; closed after."""
    descriptors: dict[str, int] = {}
    try:
        told = []
        for model in models:
            if not isinstance(model.source, str):
                descriptor = os.memfd_create("penstock-model", os.MFD_CLOEXEC)
                descriptors[f"{_LABEL}{model.name}"] = descriptor
                _write(model, descriptor)
                model = dataclasses.replace(model, source=f"{_FOLDER}{descriptor}")
            told.append(model)
        yield tuple(told), descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _write(model: Model, descriptor: int) -> None:
    live: Any = model.source
    if not live.built:
        raise ModelLoadError(
            f"the model {model.name!r} has no weights yet: call it once, or begin it with an Input"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = _save(live, descriptor)
    except Exception as error:
        raise ModelLoadError(
            f"the model {model.name!r} cannot be saved, and so not be sent to a worker "
            f"({type(error).__name__}: {error}): {ADVICE}"
        ) from error
    if names := foreign_names(config):
        raise ModelLoadError(
            f"the model {model.name!r} has classes of yours ({', '.join(names)}), "
            f"which a worker does not know: {ADVICE}"
        )
    if holds_code(config) and not model.unsafe:
        raise ModelLoadError(
            f"the model {model.name!r} has a Lambda layer, whose code does not travel safely: "
            f"{ADVICE}; or try Model(…, unsafe=True)"
        )


def _save(live: Any, descriptor: int) -> Any:
    """Write the archive (Keras 2: HDF5); returns the model's config, as it was written."""
    keras2 = sys.modules.get("tf_keras")
    with Nameless(descriptor, "r+b", closefd=False) as file:
        if keras2 is not None and isinstance(live, keras2.Model):
            import h5py

            with h5py.File(file, "w") as inside:
                live.save(inside, include_optimizer=False)
                return json.loads(inside.attrs["model_config"])
        import zipfile

        sys.modules["keras"].saving.save_model(live, file)
        with zipfile.ZipFile(file) as archive:
            return json.loads(archive.read("config.json"))
