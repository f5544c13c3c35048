"""What `tune` or a worker has found out about a model, looked up without TensorFlow.

Only for models that are all in their files, as with stored graphs: for others, only loading tells
whether they have changed. An entry names the file of the findings, and counts as long as that is
there; what a model needs is read off the findings, which may have been corrected since. `tune` adds
its plan.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.config import Model
from penstock.devices.cards import VISIBLE
from penstock.devices.plan import DAMAGED, Need, estimate
from penstock.model import digest, machine
from penstock.model.cache import Entry, all_entries, findings_at
from penstock.model.contents import keepable
from penstock.model.findings import Findings

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
    """The plan, as JSON has it; `{}` where there is none, or findings say otherwise by now."""
    data = entry.read() or {}
    plan, findings = data.get("plan"), _findings(data)
    if findings is None or not isinstance(plan, dict):
        return {}
    return plan if findings.max_batch >= int(plan.get("max_batch", 0)) else {}


def note(model: Model, device: str, findings: Path) -> None:
    """Keep where the findings about a model on this device are, for those who plan beforehand."""
    entry = entry_of(model, device)
    known = entry.read() or {}
    if known.get("findings") != str(findings):
        entry.write({"findings": str(findings), "model": model.name})


def own_device() -> str:
    """The device that this process was given: "cpu", or its card's UUID."""
    visible = os.environ.get(VISIBLE, "")
    return visible if visible.startswith(("GPU-", "MIG-")) and "," not in visible else "cpu"


def known_need(model: Model, device: str) -> Need:
    """What a model needs of a card's memory; one that is not `measured` where that is not known."""
    return _need(_findings(entry_of(model, device).read() or {}))


def likely_need(model: Model, device: str) -> Need:
    """What was measured of a model on this card, else at least its weights."""
    known = known_need(model, device)
    if known.measured or not isinstance(model.source, str):
        return known
    return estimate(model.source)


def noted_needs(device: str) -> dict[str, Need]:
    """What is known of all models that were measured on this card, by their names."""
    found: dict[str, Need] = {}
    for key, data in all_entries():
        if "plan" in key and key.get("device") == _place(device) and key["versions"] == _versions():
            need = _need(_findings(data))
            name = data.get("model") or data.get("plan", {}).get("model")
            if need.measured and name:
                found[str(name)] = need
    return dict(sorted(found.items()))


def need_of(memory: dict[str, Any], mode: str = "", ladder: Sequence[int] = ()) -> Need:
    """The need that findings tell of: memory, compile mode and sizes."""
    if not memory:
        return Need(0, measured=False)
    held = int(memory["held"])
    fixed, buffers = max(int(memory["fixed"]) - held, 0), int(memory.get("buffers_per_row", 0))
    program = held if mode == "frozen-xla" else 0  # the weights are in each
    sizes = tuple(ladder)
    return Need(held, fixed, int(memory["per_row"]), buffers, program=program, ladder=sizes)


def _need(findings: Findings | None) -> Need:
    if findings is None:
        return need_of({})
    return need_of(findings.memory, findings.mode, findings.sizes())


def _findings(data: dict[str, Any]) -> Findings | None:
    return Findings.from_json(findings_at(Path(str(data.get("findings", "")))))


def _key(model: Model, device: str) -> dict[str, Any]:
    place = Path(model.source)
    content = digest.folder_digest(place) if place.is_dir() else digest.file_digest(place)
    settings = dataclasses.asdict(model)
    return {
        "plan": content,
        "settings": {name: settings[name] for name in settings if name not in _IMMATERIAL},
        "device": _place(device),
        "versions": _versions(),
    }


def _place(device: str) -> list[str]:
    return [device, machine.processor(), str(len(os.sched_getaffinity(0)))]


def _versions() -> list[str]:
    return [*map(machine.version, _PACKAGES), platform.python_version()]
