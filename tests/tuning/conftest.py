"""A small saved network, and a cache and a folder of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_MAKE = """
import sys, keras
keras.utils.set_random_seed(7)
layers = [keras.Input((4,), name="vector"), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)]
keras.Sequential(layers).save(sys.argv[1])
"""


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Keras file."""
    path = tmp_path_factory.mktemp("net") / "net.keras"
    subprocess.run([sys.executable, "-c", _MAKE, path], check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests that look at the same plan."""
    return tmp_path_factory.mktemp("cache")
