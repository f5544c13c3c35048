"""Plans of earlier runs: a second `tune` answers at once, without TensorFlow."""

from __future__ import annotations

import dataclasses

from penstock.config import Model
from penstock.errors import ConfigError
from penstock.model.cache import Entry
from penstock.model.plans import known_plan
from penstock.tuning.plan import Plan


def recall(entry: Entry, model: Model) -> Plan | None:
    """The plan of an earlier run, if its findings are still there."""
    try:
        plan = Plan.from_json(known_plan(entry))
    except ConfigError:
        return None
    return dataclasses.replace(plan, model=model.name, source=source_text(model), cached=True)


def keep(entry: Entry, plan: Plan, findings: str) -> None:
    """Keep a plan beside the findings in that file."""
    if findings:
        entry.write({"plan": plan.to_json(), "findings": findings, "model": plan.model})


def source_text(model: Model) -> str:
    """Where a model came from, for people."""
    if isinstance(model.source, str):
        return model.source
    return f"the Keras model {model.name!r} of this process"
