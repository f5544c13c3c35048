"""Stages on three logical CPUs: placed where they belong, and trained to the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found() -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.in_stages"],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=58,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_weights_become_those_of_one_device(found: Any) -> None:
    """By Keras' fit and by ours; a last batch of one row among four micro-batches."""
    assert len(found["off"]) == 3
    for way, off in found["off"].items():
        assert off < 2e-6, way


def test_what_is_masked_does_not_count(found: Any) -> None:
    assert len(found["masked"]) == 2
    for micro_batches, off in found["masked"].items():
        assert off < 2e-6, micro_batches


def test_weights_gradients_and_optimizer_are_where_the_stage_is(found: Any) -> None:
    assert found["weights"] == ["CPU:0", "CPU:1", "CPU:2"]
    assert min(found["layers"]) >= 5
    multiplications = found["multiplications"]
    assert multiplications.pop("") == 0
    assert min(multiplications.values()) > 0.5 * max(multiplications.values())
    assert found["kept beside"]
    assert found["updates without a place"] == 0


def test_predicts_and_is_saved_as_the_model_is(found: Any) -> None:
    assert found["answers"] < 1e-6
    assert found["saved"] < 1e-6


def test_what_cannot_be_staged_is_said(found: Any) -> None:
    refused = found["refused"]
    assert "functional or sequential" in refused["no graph"]
    assert "'absent'" in refused["no such layer"]
    assert "order" in refused["wrong order"]
    assert "expected 3 stages" in refused["too few"]
    assert "0 GPUs" in refused["no GPUs"]
    assert "one device" in refused["XLA"]
    assert "micro_batches=1" in refused["added loss"]
    assert "'going': stateful=True" in refused["stateful"]


def test_keras_distribution_does_nothing_with_tensorflow(found: Any) -> None:
    """Once this fails, `pipeline`'s docstring and the guide have something to take back."""
    assert found["keras.distribution"] == ["CPU:0"]
