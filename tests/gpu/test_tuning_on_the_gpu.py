"""Tuning on a real card: memory and drift are measured, and what is found is what engines use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("real_card"),
]

_MAKE = """
import sys, keras
keras.utils.set_random_seed(7)
x = image = keras.Input((64, 64, 3), name="image")
for filters in (32, 64, 128):
    x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.MaxPooling2D()(x)
x = keras.layers.GlobalAveragePooling2D()(x)
keras.Model(image, keras.layers.Dense(10, activation="softmax")(x)).save(sys.argv[1])
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small convolutional network."""
    path = tmp_path_factory.mktemp("net") / "net.keras"
    subprocess.run([sys.executable, "-c", _MAKE, path], check=True, capture_output=True)
    return path


def test_a_plan_has_memory_drift_and_a_ladder_and_engines_start_from_it(net: Path) -> None:
    plan = penstock.tune(net, precision="auto", tolerance=0.05)
    assert "gpu:" in plan.device
    assert plan.ladder[0] == 1
    assert plan.ladder[-1] == plan.max_batch
    assert plan.memory["per_row"] > 64 * 64 * 3
    assert plan.memory_needed < plan.memory["limit"]
    assert plan.drift.keys() == {"mixed_bfloat16", "mixed_float16"}
    if plan.precision != "float32":
        assert plan.drift[plan.precision]["largest"] <= 0.05
    best = max(size.rows_per_second for size in plan.sizes if size.measured)
    assert plan.rows_per_second >= 0.98 * best
    again = penstock.tune(net, precision="auto", tolerance=0.05)
    assert again.cached
    with penstock.Engine(net, precision="auto", tolerance=0.05) as engine:
        (model,) = engine.statistics().models
    assert model.facts["cached"]
    assert model.facts["precision"] == plan.precision
    assert model.max_batch == plan.max_batch


def test_the_line_says_what_memory_a_larger_batch_takes(net: Path) -> None:
    plan = penstock.tune(net, ladder=(8, 32, 128))
    peaks = {int(size): peak for size, peak in plan.memory["peaks"].items()}
    assert peaks.keys() == {8, 32, 128}
    slope = (peaks[32] - peaks[8]) / 24
    predicted = peaks[32] + 96 * slope
    assert predicted == pytest.approx(peaks[128], rel=0.25)


def test_xlas_programs_are_kept_for_the_next_start(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    plan = penstock.tune(net, compile="frozen-xla", max_batch=16)
    assert plan.mode == "frozen-xla"
    assert list((tmp_path / "xla").iterdir())
