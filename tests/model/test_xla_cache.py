"""Where XLA's programs are kept: set before TensorFlow is imported, small, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model import xla_cache
from tests.model.tensorflow_process import in_tensorflow

FLAGS = "TF_XLA_FLAGS"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.delenv(FLAGS, raising=False)


def test_on_a_gpu_the_folder_is_named_beside_the_users_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FLAGS, "--tf_xla_auto_jit=1")
    assert xla_cache.prepare(gpu=True) == tmp_path / "xla"
    wanted = f"--tf_xla_auto_jit=1 --tf_xla_persistent_cache_directory={tmp_path / 'xla'}"
    assert os.environ[FLAGS] == wanted
    assert (tmp_path / "xla").stat().st_mode & 0o777 == 0o700
    assert xla_cache.prepare(gpu=True) is None
    assert os.environ[FLAGS] == wanted


def test_not_on_cpus_and_not_in_place_of_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert xla_cache.prepare(gpu=False) is None
    assert FLAGS not in os.environ
    monkeypatch.setenv(FLAGS, "--tf_xla_persistent_cache_directory=/mine")
    assert xla_cache.prepare(gpu=True) is None
    assert os.environ[FLAGS] == "--tf_xla_persistent_cache_directory=/mine"


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla").chmod(0o777)
    assert xla_cache.prepare(gpu=True) is None
    assert FLAGS not in os.environ


@pytest.mark.parametrize("why", ["full", "not to be written"])
def test_where_nothing_can_be_written_programs_are_only_read(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "full":
        monkeypatch.setattr(xla_cache, "LEAST", 1 << 62)
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert xla_cache.prepare(gpu=True) == tmp_path / "xla"
    assert os.environ[FLAGS] == (
        f"--tf_xla_persistent_cache_directory={tmp_path / 'xla'} "
        "--tf_xla_persistent_cache_read_only=true"
    )


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    xla_cache.make_room(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "older"]


_START = """
import sys
import numpy as np
import tensorflow as tf
from penstock.config import Model
from penstock.model.load import load

for number in range(int(sys.argv[2])):
    tf.function(lambda x: x + number)(tf.constant(1.0))  # TensorFlow counts what was traced
model = load(Model(sys.argv[1], compile="frozen-xla", max_batch=2))
outputs = model(np.ones((2, 4), np.float32), 2)[1]
model.warm_up()
print(model.cached, outputs[0].sum())
"""


@in_tensorflow
def _save(path: str) -> None:
    import keras

    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(path)


def test_a_second_start_finds_the_programs_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "xla"
    environment = {
        **os.environ,
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={folder}",
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
    }
    saved = str(tmp_path / "small.keras")
    _save(path=saved)
    told, kept = [], []
    for traced_before in ("0", "7"):
        command = [sys.executable, "-c", _START, saved, traced_before]
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=100
        )
        told.append(done.stdout.split())
        kept.append(sorted(path.name for path in folder.iterdir()))
    assert [cached for cached, _ in told] == ["False", "True"]
    assert told[0][1] == told[1][1]
    assert kept[0]
    assert kept[0] == kept[1]
