"""Whom an engine lets in, with processes of another user: the folder, the socket, its own check."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import EngineConfig, models_of
from penstock.engine.owner import start_engine
from penstock.transport import rendezvous
from tests.conditions import until

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can start processes of another user"
)

_USER, _OWN, _SHARED = 65534, 12345, 54321
_ROOT = Path(__file__).resolve().parents[2]
_ANSWER = "[0.0, 2.0, 4.0]"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, as the tests' own are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _asked(address: Path, group: int, *groups: int) -> str:
    """What the engine says to another user's process in these groups."""
    arguments = [str(address), str(_USER), str(group), ",".join(map(str, groups))]
    process = subprocess.run(
        [sys.executable, "-m", "tests.engine.stranger", *arguments],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=50,
    )
    assert not process.returncode, process.stderr
    return process.stdout.strip()


def _open(address: Path) -> None:
    """Let everybody come as far as the engine's own check."""
    address.parent.chmod(0o777)
    address.chmod(0o666)


@contextlib.contextmanager
def _engine(place: Path, group: str = "") -> Iterator[Path]:
    """An engine that belongs to nobody; its address."""
    config = EngineConfig(name="shared", folder=str(place / "run"), group=group)
    with (place / "log").open("wb") as log:
        process = start_engine(models_of("penstock.testing.models:double"), config, log=log)
    try:
        yield rendezvous.address_of(config.name, config.folder)
    finally:
        process.terminate()
        process.wait(20)


def test_members_of_its_group_are_let_in_and_others_are_not(place: Path) -> None:
    with _engine(place, str(_SHARED)) as address:
        assert _asked(address, _OWN, _SHARED) == _ANSWER
        assert _asked(address, _SHARED) == _ANSWER
        assert "Permission denied" in _asked(address, _OWN)
        _open(address)
        assert _asked(address, _OWN, _SHARED) == _ANSWER
        refusal = f"user {_USER} may not use this engine (nor is in {_SHARED})"
        assert refusal in _asked(address, _OWN)


def test_without_a_group_nobody_else_is_let_in(place: Path) -> None:
    with _engine(place) as address:
        assert "Permission denied" in _asked(address, _OWN, _SHARED)
        address.parent.chmod(0o755)
        assert "Permission denied" in _asked(address, _OWN, _SHARED), "the socket is its own, too"
        _open(address)
        refusal = f"user {_USER} may not use this engine"
        assert _asked(address, _OWN, _SHARED, 0).endswith(refusal)
        told = re.compile(rf"connection of process \d+ refused: {refusal}\n")
        until(lambda: told.search((place / "log").read_text()))
