"""Penstock: many processes, few GPUs.

The public names. Importing this loads neither TensorFlow nor numpy: each name is imported when it
is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import errors, train
    from penstock.client.about import ServedModel
    from penstock.client.client import Client, connect
    from penstock.config import EngineConfig, Model
    from penstock.data.shards import shards
    from penstock.devices.claim import claim_gpu
    from penstock.engine.owner import Engine
    from penstock.offline.report import JobReport
    from penstock.offline.run import predict
    from penstock.spec import ModelSpec, Pad, TensorSpec
    from penstock.statistics import Statistics
    from penstock.tuning.plan import Plan
    from penstock.tuning.run import tune

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Engine",
    "EngineConfig",
    "JobReport",
    "Model",
    "ModelSpec",
    "Pad",
    "Plan",
    "ServedModel",
    "Statistics",
    "TensorSpec",
    "__version__",
    "claim_gpu",
    "connect",
    "errors",
    "predict",
    "shards",
    "train",
    "tune",
]

_HOMES = {
    "Client": "penstock.client.client",
    "Engine": "penstock.engine.owner",
    "EngineConfig": "penstock.config",
    "JobReport": "penstock.offline.report",
    "Model": "penstock.config",
    "ModelSpec": "penstock.spec",
    "Pad": "penstock.spec",
    "Plan": "penstock.tuning.plan",
    "ServedModel": "penstock.client.about",
    "Statistics": "penstock.statistics",
    "TensorSpec": "penstock.spec",
    "claim_gpu": "penstock.devices.claim",
    "connect": "penstock.client.client",
    "predict": "penstock.offline.run",
    "shards": "penstock.data.shards",
    "tune": "penstock.tuning.run",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "train"):
        return importlib.import_module(f"penstock.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
