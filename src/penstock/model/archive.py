"""Keras files: `.keras` archives and HDF5, of Keras 3 and of Keras 2 (by way of `tf_keras`).

What a file is, its first bytes say; which Keras wrote it, its metadata. Code in a file (a Lambda
layer) is run only if the user allows it: checked here before anything is loaded, because not every
reader checks.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.contents import foreign_names, holds_code
from penstock.model.live import ADVICE, Nameless, in_memory
from penstock.model.runtime import find_keras2, keras

_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_UNKNOWN = re.compile(r"Could not locate (class|function)|Unknown (layer|object)|Unknown '?\w+'?:")


def read_archive(path: str, label: str, unsafe: bool) -> Any:
    """The Keras model in a file. `label` is how errors name the file."""
    with open(path, "rb") as file:
        head = file.read(8)
    if head.startswith(_ZIP):
        return _read_zip(path, label, unsafe)
    if head == _HDF5:
        return _read_hdf5(path, label, unsafe)
    found = "nothing: it is empty" if not head else f"something that begins with {head!r}"
    raise ModelLoadError(f"{label}: expected a Keras archive (zip) or HDF5, found {found}")


def _read_zip(path: str, label: str, unsafe: bool) -> Any:
    with _damage_told(label):
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata.json"))
            config = json.loads(archive.read("config.json"))
        version = str(metadata.get("keras_version", ""))
    keras2 = version.startswith("2.")
    if not unsafe:
        _check_safe(config, label, modules=keras2)
    with _failure_told(label):
        if keras2:
            return _keras2(label, version).models.load_model(
                path, compile=False, safe_mode=not unsafe
            )
        place = path if path.endswith(".keras") else Nameless(path)
        return keras().saving.load_model(place, compile=False, safe_mode=not unsafe)


def _read_hdf5(path: str, label: str, unsafe: bool) -> Any:
    import h5py

    place = Nameless(path) if in_memory(path) else path
    with _damage_told(label), h5py.File(place, "r") as file:
        text = file.attrs.get("model_config")
        version = _decoded(file.attrs.get("keras_version", "2"))
        config = None if text is None else json.loads(_decoded(text))
    if config is None:
        raise ModelLoadError(
            f"{label}: it holds weights only, no model; save the whole with model.save(…)"
        )
    if not unsafe:
        _check_safe(config, label)
    if version.startswith("3"):
        with _failure_told(label):
            return keras().saving.load_model(path, compile=False, safe_mode=not unsafe)
    found = find_keras2()
    if found is not None:
        with _failure_told(label), h5py.File(place, "r") as file:
            return found.models.load_model(file, compile=False)
    try:
        return keras().saving.load_model(path, compile=False, safe_mode=not unsafe)
    except Exception as error:
        raise _keras2_missing(label, version) from error


def _keras2(label: str, version: str) -> Any:
    found = find_keras2()
    if found is None:
        raise _keras2_missing(label, version)
    return found


def _keras2_missing(label: str, version: str) -> ModelLoadError:
    return ModelLoadError(
        f"{label} was written by Keras {version}, which Keras 3 cannot read: pip install tf-keras"
    )


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


# ── what goes wrong ────────────────────────────────────────────────────────────────────────────


def _check_safe(config: Any, label: str, modules: bool = False) -> None:
    """Refuse what would run code of the file's; with `modules`, also what would import others."""
    if holds_code(config):
        raise _unsafe(label, "Python code (a Lambda layer)")
    if modules and (names := foreign_names(config)):
        raise _unsafe(label, f"names to import ({', '.join(names)})")


def _unsafe(label: str, what: str) -> ModelLoadError:
    return ModelLoadError(
        f"{label} holds {what}, which could do anything here. "
        "If you trust it: Model(…, unsafe=True), or --unsafe"
    )


@contextlib.contextmanager
def _damage_told(label: str) -> Iterator[None]:
    try:
        yield
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelLoadError(f"{label} cannot be read, it is damaged: {error}") from error


@contextlib.contextmanager
def _failure_told(label: str) -> Iterator[None]:
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        text = str(error)
        if "safe_mode" in text:
            raise _unsafe(label, "Python code") from error
        if _UNKNOWN.search(text):
            raise ModelLoadError(
                f"{label} needs classes or functions of yours, which a worker does not know: "
                f"{ADVICE} ({text[:300]})"
            ) from error
        raise ModelLoadError(
            f"{label} cannot be loaded, perhaps it is damaged: {type(error).__name__}: {text[:500]}"
        ) from error
