"""Promises, made and kept by real processes that are really killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.devices import ledger
from penstock.devices.cards import Card
from penstock.errors import ConfigError, DeviceMemoryError
from tests.conditions import descriptors, is_alive, until
from tests.devices.conftest import GB

HOLDER = """
import sys
from penstock.devices import claim, ledger
from penstock.errors import DeviceMemoryError
sys.stdin.readline()
try:
    share = claim.take(int(sys.argv[1]), "test", float(sys.argv[2]), None)
except DeviceMemoryError as error:
    print("refused", error, flush=True)
else:
    print("won", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def crowd(machine):
    """Starts processes that claim when told; ends them."""
    begun = []

    def start(size: int, wait: float = 0.0, script: str = HOLDER) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(size), str(wait)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        with process:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_of_many_at_the_same_instant_only_as_many_win_as_there_is_room(crowd) -> None:
    crowded = [crowd(5 * GB) for _ in range(6)]
    for process in crowded:
        go(process)
    answers = [process.stdout.readline() for process in crowded]
    assert sum(answer == "won\n" for answer in answers) == 3
    assert sum(promise.size for promise in ledger.promises()) == 15 * GB
    refused = next(answer for answer in answers if answer != "won\n")
    assert "5.0 GB were asked for; gpu:0 (Fake A, GPU-aaaa-1): 1.0 GB left of 16.0 GB" in refused
    assert refused.count("5.0 GB promised to process") == 3


STORM = """
import sys
from penstock.devices import ledger
from penstock.devices.cards import Card
from penstock.errors import DeviceMemoryError
cards = [Card("GPU-a", "Fake", 16, 16, 0, 0)]
sys.stdin.readline()
won = 0
while won < 60:
    try:
        share = ledger.take(10, "test", look=lambda: cards)
    except DeviceMemoryError:
        continue
    won += 1
    assert sum(promise.size for promise in ledger.promises()) == 10
    share.release()
print("fine", flush=True)
"""


def test_the_same_memory_is_never_promised_twice_in_a_storm(crowd) -> None:
    crowded = [crowd(0, script=STORM) for _ in range(4)]
    for process in crowded:
        go(process)
    assert [process.stdout.readline() for process in crowded] == ["fine\n"] * 4


def test_who_waits_gets_what_a_killed_holder_had(crowd) -> None:
    first, second = crowd(10 * GB), crowd(10 * GB, wait=30)
    go(first)
    assert first.stdout.readline() == "won\n"
    go(second)
    os.kill(first.pid, signal.SIGKILL)
    assert second.stdout.readline() == "won\n"
    (promise,) = ledger.promises()
    assert promise.pid == second.pid


FORKS = """
import os, signal, sys, time
from penstock.devices import ledger
share = ledger.take(10 << 30, "test")
pid = os.fork()
if pid == 0:
    share.release()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    os._exit(0)
sys.stdin.readline()
"""


def test_a_forked_child_neither_keeps_nor_ends_a_promise(crowd) -> None:
    parent = crowd(0, script=FORKS)
    child = int(parent.stdout.readline())
    try:
        assert [promise.pid for promise in ledger.promises()] == [parent.pid]
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: not ledger.promises())
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_files_that_hold_no_promise_are_removed(machine) -> None:
    kept = ledger.take(GB, "kept")
    stale = machine.ledger / "1-stale.promise"
    stale.write_text(
        json.dumps({"card": "GPU-aaaa-1", "size": 15 * GB, "pid": 1, "purpose": "", "used": None})
    )
    (machine.ledger / "1-empty.promise").touch()
    locked = machine.ledger / "1-locked.promise"
    locked.write_text('{"card": "GPU-aaaa-1", "size": -5, "pid": 1, "purpose": "", "used": 0}')
    (machine.ledger / "1-link.promise").symlink_to("/etc/passwd")
    with locked.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [promise.purpose for promise in ledger.promises()] == ["kept"]
        assert len(list(machine.ledger.glob("*.promise"))) == 5  # it only looked
        ledger.take(15 * GB, "the rest").release()
    assert list(machine.ledger.glob("*.promise")) == [kept.path]
    kept.release()
    kept.release()
    assert not list(machine.ledger.glob("*.promise"))


def test_who_cannot_look_at_promises_removes_none(machine, monkeypatch) -> None:
    """Another thread may take the last descriptor at that instant."""
    kept = ledger.take(GB, "kept")
    opened = os.open

    def exhausted(path, flags, *mode) -> int:
        if path == kept.path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, flags, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", exhausted)
        with pytest.raises(OSError, match="Too many open files"):
            ledger.take(16 * GB, "all")
    assert [promise.purpose for promise in ledger.promises()] == ["kept"]
    kept.release()


def test_all_that_is_left_then_less(machine) -> None:
    machine.set({"uuid": "GPU-aaaa-1", "used": 6 * GB})
    share = ledger.take(None, "all")
    assert share.promise.size == 10 * GB
    with pytest.raises(DeviceMemoryError, match="nothing is left"):
        ledger.take(None, "more")
    share.change(size=4 * GB)
    assert ledger.rooms()[0].left == 6 * GB
    with pytest.raises(ValueError, match="cannot grow"):
        share.change(size=5 * GB)
    machine.set({"uuid": "GPU-aaaa-1", "used": 9 * GB})  # ours, but NVML does not tell whose
    assert ledger.rooms()[0].left == 3 * GB
    share.change(used=3 * GB)
    assert ledger.rooms()[0].left == 6 * GB
    share.release()


def test_the_card_with_the_most_room_or_the_one_that_is_named(machine) -> None:
    machine.set({"uuid": "GPU-a", "used": GB}, {"uuid": "GPU-b"}, {"uuid": "GPU-c", "used": GB})
    shares = [ledger.take(4 * GB, "any"), ledger.take(4 * GB, "named", card="GPU-b")]
    assert [share.promise.card for share in shares] == ["GPU-b", "GPU-b"]
    shares.append(ledger.take(4 * GB, "any"))
    assert shares[-1].promise.card == "GPU-a"
    with pytest.raises(DeviceMemoryError) as refused:
        ledger.take(9 * GB, "too much", card="GPU-b")
    assert "gpu:1" in str(refused.value)
    assert "gpu:0" not in str(refused.value)
    for share in shares:
        share.release()


def test_nothing_is_left_open(machine) -> None:
    before = descriptors()
    ledger.take(GB, "test").release()
    with pytest.raises(DeviceMemoryError):
        ledger.take(99 * GB, "test")
    assert ledger.promises() == []
    assert descriptors() == before


def test_a_folder_that_others_can_enter_is_refused(machine) -> None:
    machine.ledger.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="open to others"):
        ledger.take(GB, "test")


def test_the_folder_beside_the_sockets_is_private(machine, monkeypatch) -> None:
    monkeypatch.delenv("PENSTOCK_LEDGER")
    monkeypatch.setenv("PENSTOCK_DIR", str(machine.place / "run"))
    assert ledger.promises() == []
    assert not (machine.place / "run").exists()
    ledger.take(GB, "test").release()
    for folder in ("run", "run/gpus"):
        assert (machine.place / folder).stat().st_mode & 0o777 == 0o700


def test_a_disk_that_takes_nothing_is_named(machine) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(
            ConfigError, match=f"cannot be kept in {ledger.place()}: File too large"
        ):
            ledger.take(GB, "one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.promises() == []


def test_somebody_who_was_stopped_in_the_middle_is_told_of(machine, monkeypatch) -> None:
    ledger.take(GB, "test").release()
    monkeypatch.setattr(ledger, "_PATIENCE", 0.02)
    with (machine.ledger / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DeviceMemoryError, match="stopped in the middle"):
            ledger.promises()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("tr"), st.integers(1, 10)), max_size=20))
def test_takes_and_releases_in_any_order(steps) -> None:
    cards = [Card("GPU-a", "Fake", 20, 20, 0, 0), Card("GPU-b", "Fake", 10, 10, 0, 1)]
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_LEDGER", str(Path(place) / "ledger"))
        held: list[ledger.Share] = []
        for step, size in steps:
            left = [
                card.total - sum(s.promise.size for s in held if s.promise.card == card.uuid)
                for card in cards
            ]
            if step == "r" and held:
                held.pop(size % len(held)).release()
            elif max(left) >= size:
                held.append(ledger.take(size, "test", look=lambda: cards))
            else:
                with pytest.raises(DeviceMemoryError):
                    ledger.take(size, "test", look=lambda: cards)
            assert sorted(p.size for p in ledger.promises()) == sorted(s.promise.size for s in held)
        for share in held:
            share.release()
