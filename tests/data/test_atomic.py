from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from penstock.data import atomic
from penstock.data.atomic import discard, publish, staged, temporary, write_whole


def test_two_phases(tmp_path: Path) -> None:
    path = str(tmp_path / "part.bin")
    Path(path).write_bytes(b"old")
    with staged(path) as file:
        file.write(b"new")
        assert Path(path).read_bytes() == b"old"
    assert Path(path).read_bytes() == b"old"
    assert Path(temporary(path)).read_bytes() == b"new"
    for _ in range(2):  # the second time as after a crash that left it open
        publish(path)
    assert [p.name for p in tmp_path.iterdir()] == ["part.bin"]
    assert Path(path).read_bytes() == b"new"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "part.bin")
    with pytest.raises(ZeroDivisionError), staged(path) as file:
        file.write(b"half" * (1 // 0))
    assert not list(tmp_path.iterdir())
    discard(path)


@pytest.mark.parametrize("phase", ["writing", "staged", "published"])
def test_killed_at_any_step(tmp_path: Path, phase: str) -> None:
    path = str(tmp_path / "part.bin")
    code = f"""
import os, signal
from penstock.data.atomic import publish, staged
def die(now):
    if now == {phase!r}:
        os.kill(os.getpid(), signal.SIGKILL)
with staged({path!r}) as file:
    file.write(b"x" * 100_000)
    die("writing")
die("staged")
publish({path!r})
die("published")
"""
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -signal.SIGKILL
    assert Path(path).exists() == (phase == "published")
    write_whole(path, b"again")
    assert [p.name for p in tmp_path.iterdir()] == ["part.bin"]
    assert Path(path).read_bytes() == b"again"


def test_everything_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "part.bin")
    done: list[str] = []

    def fsync(descriptor: int) -> None:
        done.append("sync " + os.readlink(f"/proc/self/fd/{descriptor}"))

    def replace(old: str, new: str) -> None:
        done.append(f"rename {old} {new}")

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    monkeypatch.setattr(atomic.os, "replace", replace)
    write_whole(path, b"x")
    hidden = temporary(path)
    assert done == [f"sync {hidden}", f"rename {hidden} {path}", f"sync {tmp_path}"]


def test_a_full_disk_says_which_file(tmp_path: Path) -> None:
    path = str(tmp_path / "part.bin")
    os.symlink("/dev/full", temporary(path))
    with pytest.raises(OSError, match=r"\.part\.bin\.partial") as caught, staged(path) as file:
        file.write(b"x" * 100_000)
    assert caught.value.errno == errno.ENOSPC
    assert not os.path.lexists(temporary(path))


def test_there_is_nothing_to_publish(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish(str(tmp_path / "never.bin"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), staged(str(tmp_path / "nowhere/a")):
        pass


def test_other_file_systems() -> None:
    memory = fsspec.filesystem("memory")
    with staged("memory://atomic/part.bin") as file:
        file.write(b"x")
    assert not memory.exists("/atomic/part.bin")
    publish("memory://atomic/part.bin")
    assert memory.cat("/atomic/part.bin") == b"x"
    assert memory.ls("/atomic", detail=False) == ["/atomic/part.bin"]
    with pytest.raises(ZeroDivisionError), staged("memory://atomic/other.bin"):
        1 / 0  # noqa: B018
    assert memory.ls("/atomic", detail=False) == ["/atomic/part.bin"]
