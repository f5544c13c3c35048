"""TensorFlow's chatter: hidden in workers, unless the user wants it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.quiet import quieten, without_chatter

_IMPORT = """
from penstock.model.quiet import quieten
import importlib.util, sys
quieten()
importlib.util.find_spec("tensorflow")  # a look is no import
import tensorflow as tf, keras
tf.zeros(3)
ours = [finder for finder in sys.meta_path if "watching" in type(finder).__module__]
print(keras.backend.backend(), ours, type(tf.__spec__.loader).__name__)
"""


def _imported(**environment: str) -> subprocess.CompletedProcess[str]:
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_"))}
    return subprocess.run(
        [sys.executable, "-c", _IMPORT],
        env=settings | environment,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("level", [{}, {"TF_CPP_MIN_LOG_LEVEL": "3"}])
def test_a_worker_says_nothing_and_uses_tensorflow(level: dict[str, str]) -> None:
    done = _imported(PENSTOCK_WORKER="0", KERAS_BACKEND="torch", **level)
    assert done.stderr == ""
    assert done.stdout.split() == ["tensorflow", "[]", "SourceFileLoader"]


def test_users_who_want_it_see_it() -> None:
    assert "oneDNN" in _imported(PENSTOCK_WORKER="0", TF_CPP_MIN_LOG_LEVEL="0").stderr


def test_elsewhere_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_WORKER", raising=False)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    before = dict(os.environ), list(sys.meta_path)
    quieten()
    assert (dict(os.environ), list(sys.meta_path)) == before


def test_only_chatter_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with without_chatter():
        os.write(2, b"I0000 port.cc: oneDNN custom operations are on. You may\n")
        os.write(2, b"something that matters\n")
    os.write(2, b"and afterwards\n")
    assert capfd.readouterr().err == "something that matters\nand afterwards\n"


_CONVERTED = """
import inspect, os, signal, sys
from penstock.model.quiet import quieten

quieten()
import tensorflow as tf


def doubled(x):
    def inner(v):
        return v * 2 if tf.reduce_sum(v) > 0 else v

    for _ in tf.range(3):
        x = inner(x)
    return tf.map_fn(lambda v: inner(v), x)


@tf.function
def last(x):
    if tf.reduce_sum(x) > 0:
        x = doubled(x)
    os.kill(os.getpid(), signal.SIGKILL)
    return x


print(tf.function(doubled)(tf.ones(2)).numpy().tolist())
generated = next(m for name, m in sys.modules.items() if name.startswith("__autograph"))
print("ag__" in inspect.getsource(generated), flush=True)
last(tf.ones(2))
"""


def test_a_worker_that_is_killed_leaves_no_files_of_autographs(tmp_path: Path) -> None:
    (tmp_path / "converted.py").write_text(_CONVERTED)
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"PENSTOCK_WORKER": "0", "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "converted.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[16.0, 16.0]", "True"]
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "temporary").iterdir()) == []
