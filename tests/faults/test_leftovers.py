"""The check that ends every test here must itself catch what it is there for."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Engine, connect
from tests.faults import leftovers
from tests.faults.company import worker_pids
from tests.faults.models import Verb, row
from tests.faults.waiting import eventually


@pytest.fixture
def remains(folder: Path, run_folder: Path) -> Callable[[], list[str]]:
    before = leftovers.belongings()
    return lambda: leftovers.remains(before, str(folder), run_folder)


def test_nothing_remains_of_an_engine_that_was_closed(start, remains):
    engine = start(workers=2)
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
    assert [text.split()[0] for text in remains()].count("file") == 2, "a socket and a lock"
    engine.close()
    eventually(lambda: not remains())


def test_a_descriptor_that_is_kept_is_caught(remains):
    kept = os.open("/dev/null", os.O_RDONLY)
    assert remains() == [f"descriptor {kept}: /dev/null"]
    os.close(kept)
    assert not remains()


def test_a_client_that_is_not_closed_is_caught(start, remains):
    engine = start()
    engine.predict(row(Verb.ANSWER)[None])
    client = connect(str(engine.address))
    client.predict(row(Verb.ANSWER)[None])
    engine.close()
    kept = connect(str(start().address))
    found = remains()
    assert any("socket" in text for text in found)
    assert any("penstock-reader" in text for text in found)
    kept.close()
    client.close()


def test_a_mapping_that_is_kept_is_caught(start, client, remains):
    engine = start()
    other = client(engine)
    other.predict(row(Verb.ANSWER)[None])
    assert any("mappings of segments" in text for text in remains())


def test_a_thread_that_is_kept_is_caught(remains):
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, name="straggler")
    thread.start()
    assert remains() == ["thread straggler"]
    ends.set()
    thread.join()


def test_a_file_that_is_kept_is_caught(run_folder, remains):
    run_folder.mkdir()
    (run_folder / "old.sock").touch()
    assert remains() == ["file old.sock"]
    (run_folder / "old.sock").unlink()


def test_a_process_that_called_setsid_and_lost_its_parent_is_caught(remains):
    script = "setsid sleep 1000 >/dev/null & echo $!"
    shell = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True, timeout=10)
    pid = int(shell.stdout)
    eventually(lambda: remains() == [f"process {pid}: sleep 1000"])
    assert pid not in leftovers.descendants(os.getpid())
    leftovers.kill(pid)
    eventually(lambda: not remains())


def test_a_child_that_was_not_waited_for_is_caught(remains):
    child = os.posix_spawn("/bin/true", ["true"], {})
    eventually(lambda: not leftovers.alive(child))
    assert remains() == [f"child {child}: "]
    os.waitpid(child, 0)
    assert not remains()


def _growth_after(engine: Engine, verb: Verb, argument: int, of: int) -> list[str]:
    engine.predict(row(Verb.ANSWER)[None])
    before = leftovers.footprint(of)
    engine.predict(row(verb, argument)[None])
    return before.growth(leftovers.footprint(of), kilobytes=2048)


def test_a_leaking_model_function_shows_in_its_workers_footprint(start):
    engine = start()
    (worker,) = worker_pids(engine)
    assert _growth_after(engine, Verb.ANSWER, 0, worker) == []
    assert _growth_after(engine, Verb.LEAK_DESCRIPTOR, 0, worker) == ["1 descriptors more"]
    (growth,) = _growth_after(engine, Verb.LEAK_MEMORY, 8192, worker)
    assert "of memory more" in growth


def test_a_client_that_never_hangs_up_shows_in_the_engines_footprint(start, raw):
    engine = start()
    engine.predict(row(Verb.ANSWER)[None])
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    hostile = raw(engine)
    (growth,) = before.growth(leftovers.footprint(pid), kilobytes=2048)
    assert growth == "2 descriptors more", "its socket and its pidfd"
    hostile.close()
    eventually(lambda: before.growth(leftovers.footprint(pid), kilobytes=2048) == [])
