"""TensorFlow and its relatives, by what is installed; none of them is imported.

Several distributions bring the module `tensorflow`: two of them at once overwrite each other's
files, and removing one breaks the other.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

from penstock.cli.doctor.finding import Finding, note, ok, problem

_PROVIDERS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-intel",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)
_FOR_CPUS = {"tensorflow-cpu", "tensorflow-intel", "intel-tensorflow", "tf-nightly-cpu"}
_OLDEST = (2, 21)
_CUDA = "nvidia-cudnn-cu12"


def findings(gpus: int) -> Iterator[Finding]:
    """Everything here. `gpus`: how many there are."""
    yield from _tensorflow(gpus)
    yield from _keras()


def version_of(distribution: str) -> str:
    """Of what is installed; "" if it is not."""
    try:
        return importlib.metadata.version(distribution)
    except PackageNotFoundError:
        return ""


def _tensorflow(gpus: int) -> Iterator[Finding]:
    name = "tensorflow"
    wanted = "penstock[gpu]" if gpus else "penstock[cpu]"
    installed = {each: version for each in _PROVIDERS if (version := version_of(each))}
    text = ", ".join(f"{each} {version}" for each, version in installed.items())
    if not installed:
        if importlib.util.find_spec("tensorflow") is None:
            yield note(
                name,
                "not installed: models can only be plain Python functions",
                f"pip install '{wanted}'",
            )
        else:
            yield note(name, "the module is there, but was not installed by pip", "see --deep")
        return
    if len(installed) > 1:
        yield problem(
            name,
            f"{text}: both bring the module tensorflow, and overwrite each other",
            f"pip uninstall -y {' '.join(installed)} && pip install '{wanted}'",
        )
        return
    (provider, version), *_ = installed.items()
    if _number(version) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield problem(name, f"{text}; Penstock needs {oldest}", f"pip install -U '{wanted}'")
    elif gpus and provider in _FOR_CPUS:
        yield problem(
            name,
            f"{text} is for CPUs, and there {'is a GPU' if gpus == 1 else f'are {gpus} GPUs'}",
            f"pip uninstall -y {provider} && pip install 'penstock[gpu]'",
        )
    elif gpus and not version_of(_CUDA):
        yield note(
            name,
            f"{text}, without the CUDA libraries that come with it",
            "pip install 'penstock[gpu]', unless CUDA 12 is installed otherwise (see --deep)",
        )
    else:
        yield ok(name, text)


def _keras() -> Iterator[Finding]:
    tensorflow = next(filter(None, map(version_of, _PROVIDERS)), "")
    keras, legacy = version_of("keras"), version_of("tf-keras")
    if keras and _number(keras) < (3,) and _number(tensorflow) >= (2, 16):
        yield problem(
            "keras",
            f"{keras} beside TensorFlow {tensorflow}, which needs Keras 3",
            "pip install -U keras; models of Keras 2 run on tf-keras",
        )
    elif keras:
        yield ok("keras", keras)
    elif tensorflow:
        yield problem("keras", "not installed, though TensorFlow is", "pip install keras")
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        yield problem(
            "keras backend",
            f"KERAS_BACKEND is {backend}; workers need tensorflow",
            "unset KERAS_BACKEND where the engine is started",
        )
    if legacy and tensorflow and _number(legacy)[:2] != _number(tensorflow)[:2]:
        fitting = ".".join(map(str, _number(tensorflow)[:2]))
        yield problem(
            "tf-keras",
            f"{legacy} does not fit TensorFlow {tensorflow}",
            f"pip install --no-deps 'tf-keras=={fitting}.*'",
        )
    elif legacy:
        yield ok("tf-keras", legacy)
    elif tensorflow:
        yield note(
            "tf-keras",
            "not installed: needed only for models of Keras 2",
            "pip install --no-deps tf-keras, if you have such models",
        )


def _number(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
