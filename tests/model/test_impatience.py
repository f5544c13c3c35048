"""A worker's TensorFlow does not wait for memory, whoever imports it, and whenever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MODEL = """
import tensorflow as tf
from tensorflow.python.eager import context

def made():
    tf.zeros(3)  # its devices are started
    told = context.context().config.gpu_options.experimental
    print(told.disallow_retry_on_allocation_failure)
    return lambda x: x
"""
_LOAD = """
import sys
from penstock.config import Model
from penstock.model.load import load
if "before" in sys.argv:
    import tensorflow
load(Model("own.py:made"))
load(Model("own.py:made"))
"""


@pytest.mark.parametrize(
    ("environment", "arguments", "told"),
    [
        ({"PENSTOCK_WORKER": "0"}, [], "True"),
        ({"PENSTOCK_WORKER": "0"}, ["before"], "True"),
        ({}, [], "False"),
    ],
    ids=["a model's own code", "imported before", "not in a worker"],
)
def test_it_is_told_before_a_models_own_code_starts_the_devices(
    tmp_path: Path, environment: dict[str, str], arguments: list[str], told: str
) -> None:
    (tmp_path / "own.py").write_text(_MODEL)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, *arguments],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [told, told], done.stderr
