"""Checkpoints: whole or not there, the newest few kept, damage passed over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from penstock.data import atomic
from penstock.errors import ConfigError
from penstock.train import checkpoints
from penstock.train.checkpoints import Checkpoints, State


def state(step: int) -> State:
    return State(
        step,
        epoch=step // 10,
        step_in_epoch=step % 10,
        arrays={
            "kernel": np.full((3, 2), step, np.float32),
            "scale": np.array(step, np.float64),
            "half": np.full(5, step, ml_dtypes.bfloat16),
            "seed": np.array([step, 1], np.uint32),
            "empty": np.zeros((0, 4), np.int64),
            "mask": np.array([True, False]),
        },
        facts={"seed": 3, "history": {"loss": [0.1, 1 / 3]}, "step": step},
    )


def same(one: State | None, other: State) -> bool:
    assert one is not None
    assert (one.step, one.epoch, one.step_in_epoch) == (
        other.step,
        other.epoch,
        other.step_in_epoch,
    )
    assert one.facts == other.facts
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in other.arrays.items():
        assert one.arrays[name].dtype == array.dtype
        assert one.arrays[name].shape == array.shape
        assert np.array_equal(one.arrays[name], array)
    return True


def test_what_was_saved_is_found_and_the_newest_are_kept(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "deep" / "folder", keep=2)
    assert kept.newest() is None
    for step in (10, 20, 30):
        path = kept.save(state(step))
        assert path.exists()
    assert [path.name for path in kept.paths()] == [
        "000001-step-20.checkpoint",
        "000002-step-30.checkpoint",
    ]
    assert same(kept.newest(), state(30))


def test_a_run_that_begins_anew_is_newer_though_its_steps_are_fewer(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep=1)
    kept.save(state(5000))
    kept.save(state(7))
    assert [path.name for path in kept.paths()] == ["000001-step-7.checkpoint"]
    assert same(kept.newest(), state(7))


@pytest.mark.parametrize("keep", [1, 2])
def test_damage_at_any_byte_is_seen_and_passed_over(tmp_path: Path, keep: int) -> None:
    kept = Checkpoints(tmp_path, keep=2)
    kept.save(state(1))
    newest = kept.save(state(2))
    whole = newest.read_bytes()
    flips = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))]
    cuts = [whole[:size] for size in range(0, len(whole), 7)]
    for damaged in (*flips, *cuts, whole + b"x"):
        newest.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match=r"000001-step-2\.checkpoint is damaged"):
            assert same(kept.newest(), state(1))
    Checkpoints(tmp_path, keep=keep).save(state(3))
    assert same(kept.newest(), state(3))


def test_a_save_killed_at_any_point_leaves_the_older_checkpoint_whole(tmp_path: Path) -> None:
    call = f"killed_at_every_line(Path({str(tmp_path)!r}))"
    code = f"from pathlib import Path; from {__name__} import *; {call}"
    alone = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=os.environ | alone, check=True, timeout=50)


def killed_at_every_line(folder: Path) -> None:
    """Forks, so it runs in a process without threads; each child dies before another line."""
    kept = Checkpoints(folder, keep=1)
    kept.save(state(0))
    newest, found = 0, set()
    for line in range(1, 10_000):
        pid = os.fork()
        if pid == 0:
            _save_and_die(kept, newest + 1, line)
        _, status = os.waitpid(pid, 0)
        now = kept.newest()
        assert now is not None
        assert same(now, state(now.step))
        assert now.step in (newest, newest + 1)
        found.add(now.step - newest)
        newest = now.step
        for old in kept.paths()[:-1]:  # so that all rounds have the same lines to run
            old.unlink()
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    assert found == {0, 1}
    kept.save(state(newest + 1))
    assert [path.name for path in folder.iterdir()] == [kept.paths()[0].name]


_OURS = {atomic.__file__, checkpoints.__file__}


def _save_and_die(kept: Checkpoints, step: int, line: int) -> None:
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in _OURS:
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    kept.save(state(step))
    sys.settrace(None)
    os._exit(0)


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep: expected at least 1 checkpoint, got 0"):
        Checkpoints(tmp_path, keep=0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="expected a folder, got the file"):
        Checkpoints(tmp_path / "file")
    kept = Checkpoints(tmp_path)
    kept.save(state(1))
    with pytest.raises(TypeError, match="texts: expected an array of numbers, got object"):
        kept.save(State(2, 0, 2, {"texts": np.array(["a"], object)}))
    assert same(kept.newest(), state(1))
    assert len(list(tmp_path.iterdir())) == 2
