"""Who each of `predict`'s options is for: the model, the engine, the source, or the job itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from penstock.config import EngineConfig, Model
from penstock.data.formats import OPTIONS
from penstock.errors import ConfigError
from penstock.offline.settings import JobSettings

_MODEL = {field.name for field in dataclasses.fields(Model)} - {"source", "name"}
_ENGINE = {field.name for field in dataclasses.fields(EngineConfig)} - {"name"}
_JOB = {field.name for field in dataclasses.fields(JobSettings)}
_SOURCE = {"format"} | {option for options in OPTIONS.values() for option in options}
SINK_OPTIONS = {"compression"}


@dataclass(frozen=True)
class Options:
    """All options of a job, sorted. `engine_name`: an engine that runs already, in a folder."""

    job: JobSettings
    model: dict[str, Any]
    engine: dict[str, Any]
    source: dict[str, Any]
    sink: dict[str, Any]
    engine_name: str = ""
    engine_folder: str = ""


def sort_options(given: dict[str, Any]) -> Options:
    """Each to whom it concerns; of names that two have, the job's comes first.

    Raises `ConfigError` for one that nobody knows.
    """
    rest = dict(given)
    engine_name = rest.pop("engine", "")
    sorted_: list[dict[str, Any]] = []
    for known in (_JOB, _MODEL, _ENGINE, _SOURCE, SINK_OPTIONS):
        sorted_.append({name: rest.pop(name) for name in list(rest) if name in known})
    if rest:
        everything = sorted(_JOB | _MODEL | _ENGINE | _SOURCE | SINK_OPTIONS | {"engine"})
        raise ConfigError(f"unknown option {min(rest)!r}; known: {', '.join(everything)}")
    job, model, engine, source, sink = sorted_
    folder = engine.pop("folder", "") if engine_name else ""
    if engine_name and (model or engine):
        raise ConfigError(
            f"{', '.join([*model, *engine])}: the engine {engine_name!r} runs already, "
            "with settings of its own"
        )
    return Options(JobSettings(**job), model, engine, source, sink, engine_name, folder)
