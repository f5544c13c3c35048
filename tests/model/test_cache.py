"""What is remembered, what is not believed, and folders that do not work."""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.model import cache
from penstock.model.cache import Entry

KEY = {"content": "abc", "versions": ["1", "2"], "settings": [1, True, 0.5]}
FOUND = {"mode": "frozen", "latency": {"1": 5, "32": 70}, "notes": ["a note"]}


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    assert Entry(KEY, tmp_path).read() is None
    Entry(KEY, tmp_path).write(FOUND)
    assert Entry(KEY, tmp_path).read() == FOUND
    Entry(KEY, tmp_path).write({"mode": "xla"})
    assert Entry(KEY, tmp_path).read() == {"mode": "xla"}
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".json"]


@pytest.mark.parametrize("changed", [{"content": "abd"}, {"versions": ["1", "3"]}, {"more": 1}])
def test_another_key_is_another_entry(tmp_path: Path, changed: dict[str, Any]) -> None:
    Entry(KEY, tmp_path).write(FOUND)
    assert Entry({**KEY, **changed}, tmp_path).read() is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: text.replace('"1":5', '"1":6'),
        lambda text: text.replace('"format":1', '"format":0'),
        lambda text: text.replace('"abc"', '"abd"'),
        lambda text: "[1, 2]",
        lambda text: "\0" * 100,
        lambda text: json.dumps({"format": 1}),
    ],
)
def test_what_is_damaged_is_made_anew(tmp_path: Path, damage: Any) -> None:
    entry = Entry(KEY, tmp_path)
    entry.write(FOUND)
    entry.path.write_text(damage(entry.path.read_text()))
    assert entry.read() is None
    entry.write(FOUND)
    assert entry.read() == FOUND


def test_an_empty_key_keeps_nothing(tmp_path: Path) -> None:
    entry = Entry({}, tmp_path)
    with entry.alone(1.0), entry.trying("xla"):
        entry.write(FOUND)
    assert entry.read() is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    entry = Entry(KEY, file)
    with entry.alone(1.0), entry.trying("xla"):
        entry.write(FOUND)
    assert entry.read() is None
    assert not entry.deadly("xla")


def test_the_folder_is_the_one_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "there"))
    Entry(KEY).write(FOUND)
    assert len(list((tmp_path / "there" / "models").iterdir())) == 1
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "penstock"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under any number: nothing is kept, and nothing fails."""
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    entry = Entry(KEY)
    with entry.alone(1.0), entry.trying("xla"):
        entry.write(FOUND)
    assert entry.read() is None
    assert list(cache.all_entries()) == []


def test_one_at_a_time_finds_out(tmp_path: Path) -> None:
    inside: list[int] = []
    most = 0

    def work() -> None:
        nonlocal most
        with Entry(KEY, tmp_path).alone(20.0):
            inside.append(1)
            most = max(most, len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_patience_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    with Entry(KEY, tmp_path).alone(20.0), Entry(KEY, tmp_path).alone(0.1):
        pass
    assert 0.1 <= time.monotonic() - began < 10


def test_what_kills_its_process_twice_is_deadly(tmp_path: Path) -> None:
    for deaths in (0, 1, 2):
        assert Entry(KEY, tmp_path).deadly("xla") == (deaths >= 2)
        if os.fork() == 0:
            with Entry(KEY, tmp_path).trying("xla"):
                os._exit(1)
        os.wait()
    assert not Entry(KEY, tmp_path).deadly("frozen-xla")
    old = time.time() - 2 * 24 * 3600
    (mark,) = (tmp_path / "models").glob("*.trying")
    os.utime(mark, (old, old))
    assert not Entry(KEY, tmp_path).deadly("xla")


def test_what_worked_is_not_deadly(tmp_path: Path) -> None:
    for _ in range(3):
        with Entry(KEY, tmp_path).trying("xla"):
            pass
        with pytest.raises(ValueError, match="ordinary"), Entry(KEY, tmp_path).trying("xla"):
            raise ValueError("an ordinary error")
    assert not Entry(KEY, tmp_path).deadly("xla")
