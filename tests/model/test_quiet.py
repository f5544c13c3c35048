"""TensorFlow's chatter: hidden in workers, unless the user wants it."""

from __future__ import annotations

import os
import subprocess
import sys

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
