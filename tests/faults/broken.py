"""Engines with a fault that is made on purpose: what is to find such faults must find this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SABOTAGE = Path(__file__).parent / "sabotage"


def broken(patch: pytest.MonkeyPatch, fault: str, how_much: int) -> None:
    """Engines that are started from here on have this fault (see `sabotage/sitecustomize.py`)."""
    path = [str(_SABOTAGE), os.environ.get("PYTHONPATH", "")]
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    patch.setenv("PENSTOCK_TEST_FAULT", f"{fault} {how_much}")
