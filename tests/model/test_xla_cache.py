"""Where XLA's programs are kept: set before TensorFlow is imported, small, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.model import xla_cache

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


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    xla_cache.make_room(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "older"]
