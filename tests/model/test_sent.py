"""Engines with a live Keras model, with encoded images, and with what cannot be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.testing import running
from tests.conditions import is_alive, until
from tests.model.networks import close, network
from tests.model.tensorflow_process import in_tensorflow

STEPS = str(Path(__file__).parent.parent / "models" / "tensors.py")

_SCRIPT = """
import json, os, signal, sys
import keras, numpy as np, penstock
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)], name="mine")
x = np.arange(20, dtype=np.float32).reshape(5, 4)
with penstock.Engine(model, compile="function") as engine:
    def ask():
        np.testing.assert_allclose(engine.predict(x), model(x), rtol=1e-5, atol=1e-6)
        (worker,) = engine.statistics().workers
        return worker
    first = ask()
    os.kill(first.pid, signal.SIGKILL)
    second = ask()
    engine_pid = next(int(line.split()[1]) for line in open(f"/proc/{second.pid}/status")
                      if line.startswith("PPid"))
    print(json.dumps({"models": engine.models(), "pids": [first.pid, second.pid, engine_pid],
                      "starts": second.starts}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(150)
def test_a_live_model_outlives_its_workers_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_SCRIPT)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert told["models"] == ["mine"]
    assert told["starts"] == 2
    until(lambda: not any(map(is_alive, told["pids"])))
    assert list((tmp_path / "tmp").iterdir()) == []


@in_tensorflow
def save_with_images(folder: Path) -> tuple[list[bytes], Any]:
    """Saves a network; returns encoded images of several sizes, and what it says of them."""
    import tensorflow as tf

    model = network("conv")
    model.save(folder / "net.keras")
    random = np.random.default_rng(1)
    encoded = [
        tf.io.encode_png(random.integers(0, 255, (height, 10, 3), np.uint8)).numpy()
        for height in (12, 30, 5)
    ]
    pixels = [
        tf.image.resize(tf.cast(tf.io.decode_image(data, 3), tf.float32), (12, 12))
        for data in encoded
    ]
    return encoded, np.asarray(model(tf.stack(pixels)))


@pytest.mark.timeout(120)
def test_encoded_images_and_other_models_in_one_engine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encoded, wanted = save_with_images(folder=tmp_path)  # type: ignore[misc, func-returns-value]
    capfd.readouterr()
    models = [
        Model(
            tmp_path / "net.keras",
            inputs=("string", ()),
            preprocess=f"{STEPS}:decode",
            compile="function",
        ),
        Model(f"{STEPS}:signed_pair", name="pair", compile="function"),
        Model(f"{STEPS}:plain"),
    ]
    with running(models) as engine:
        close(engine.predict(encoded, model="net"), wanted)
        x, n = np.ones((2, 3), np.float32), np.array([1, 2], np.int32)
        close(engine.predict({"x": x, "n": n}, model="pair"), x + n[:, None])
        close(engine.predict(x, model="plain"), x + x)
    assert capfd.readouterr().err == ""


def test_what_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    """Without importing TensorFlow for it."""
    began = time.monotonic()
    with (
        pytest.raises(ModelLoadError, match=r"no file or folder .*absent\.keras"),
        running(tmp_path / "absent.keras"),
    ):
        pass
    assert time.monotonic() - began < 20
