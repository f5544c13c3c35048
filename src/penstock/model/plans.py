"""What `tune` has found out about a model, looked up without TensorFlow.

Only for models that are all in their files, as with stored graphs: for others, only loading tells
whether they have changed. What is here counts as long as the findings that it tells of are there,
so deleting those deletes this too.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any

from penstock.config import Model
from penstock.devices.plan import DAMAGED, Need
from penstock.model import digest, machine
from penstock.model.cache import Entry
from penstock.model.contents import keepable

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly")
_PACKAGES = ("penstock", *_TENSORFLOW, "keras", "tf_keras", "keras_hub")
_IMMATERIAL = ("source", "name", "weight", "pad")


def entry_of(model: Model, device: str) -> Entry:
    """Where the plan of this model on this device ("cpu", or a card's UUID) is kept.

    An entry that keeps nothing, where nothing can be known of the model.
    """
    try:
        known = keepable(model, model.source) and not model.sample
        return Entry(_key(model, device) if known else {})
    except DAMAGED:  # whoever loads it says what is wrong with it
        return Entry({})


def known_plan(entry: Entry) -> dict[str, Any]:
    """The plan, as JSON has it; `{}` where there is none, or its findings are gone."""
    data = entry.read()
    if data is None or not Path(str(data.get("findings", ""))).is_file():
        return {}
    plan = data.get("plan")
    return plan if isinstance(plan, dict) else {}


def known_need(model: Model, device: str) -> Need:
    """What a model needs of a card's memory; one that is not `measured` where that is not known."""
    memory = known_plan(entry_of(model, device)).get("memory")
    return need_of(memory if isinstance(memory, dict) else {})


def need_of(memory: dict[str, Any]) -> Need:
    """The need that findings tell of."""
    if not memory:
        return Need(0, measured=False)
    held = int(memory["held"])
    fixed, buffers = max(int(memory["fixed"]) - held, 0), int(memory.get("buffers_per_row", 0))
    return Need(held, fixed, int(memory["per_row"]), buffers)


def _key(model: Model, device: str) -> dict[str, Any]:
    place = Path(model.source)
    content = digest.folder_digest(place) if place.is_dir() else digest.file_digest(place)
    settings = dataclasses.asdict(model)
    return {
        "plan": content,
        "settings": {name: settings[name] for name in settings if name not in _IMMATERIAL},
        "device": [device, machine.processor(), str(len(os.sched_getaffinity(0)))],
        "versions": [*map(machine.version, _PACKAGES), platform.python_version()],
    }
