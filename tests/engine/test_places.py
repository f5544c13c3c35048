"""Shares of cards' memory, on a machine whose cards are made up: taken, settled, given back."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.config import EngineConfig, Model
from penstock.devices import ledger, mps
from penstock.devices.limit import BUFFERS, MEMORY, OVERHEAD, ROWS
from penstock.devices.plan import ROOM, Need, worker_need
from penstock.engine.places import Places
from penstock.errors import DeviceMemoryError
from penstock.model.peak import Need as Peak
from tests.conditions import until
from tests.devices.conftest import GB, Machine, machine  # noqa: F401

CARD = "GPU-aaaa-1"
MB = 1 << 20
FUNCTIONS = Path(__file__).resolve().parent.parent / "models" / "functions.py"


def _places(*models: str, name: str = "test", **settings: Any) -> Places:
    made = [Model(source) for source in models or ["m:f"]]
    return Places(made, EngineConfig(name=name, **settings))


def _settle(places: Places, pid: int) -> None:
    settling = places.settle(0, pid, True)
    assert settling is not None
    settling.join(20)
    assert not settling.is_alive()


def _promised() -> list[int]:
    return [promise.size for promise in ledger.promises()]


def test_all_that_is_left_of_a_card_until_the_workers_are_gone(machine: Machine) -> None:  # noqa: F811
    machine.set({"uuid": CARD, "name": "Fake A", "used": 4 * GB})
    places = _places(name="first")
    assert len(places) == 1
    assert places.label(0) == "gpu:0 Fake A"
    environment = places.environment(0)
    assert environment["CUDA_VISIBLE_DEVICES"] == CARD
    buffers = (12 * GB - OVERHEAD) // 8  # nothing is known of the model
    assert environment[BUFFERS] == str(buffers)
    assert environment[MEMORY] == str(12 * GB - buffers)
    assert places.numbers(0) == "it had 12.0 GB of gpu:0 Fake A"
    with pytest.raises(DeviceMemoryError) as refused:
        _places()
    assert "0 MB left of 16.0 GB" in str(refused.value)
    assert "12.0 GB promised to process" in str(refused.value)
    assert "(engine first)" in str(refused.value)
    places.release()
    assert _promised() == []
    places.release()


def test_tensorflow_leaves_room_for_the_weights_in_compiled_programs(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
) -> None:
    machine.set({"uuid": CARD, "name": "Fake A", "used": 4 * GB})
    model = tmp_path / "model.h5"
    own = 12 * GB - OVERHEAD
    for weights, programs in ((GB // 8, GB), (GB, own // 4), (9 * GB, None)):
        with open(model, "wb") as file:
            file.truncate(3 * weights)
        places = _places(str(model))
        memory, buffers = (int(places.environment(0)[name]) for name in (MEMORY, BUFFERS))
        if programs is not None:  # at most a quarter of what there is
            assert memory == 12 * GB - programs - buffers
        assert memory - OVERHEAD > 1.03 * weights / ROOM  # and some rows beside the weights
        assert _promised() == [12 * GB]
        places.release()


MEASURED = Need(GB, GB, 100 * MB, 8 * MB, program=GB // 2, ladder=(1, 16, 64))


@pytest.mark.parametrize("size", [4 * GB, 8 * GB, 15 * GB])
def test_of_a_measured_model_everything_fits_into_the_share_and_is_used(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr("penstock.engine.places.likely_need", lambda *_: MEASURED)
    places = _places("a.keras", gpu_memory=size)
    memory, buffers = (int(places.environment(0)[name]) for name in (MEMORY, BUFFERS))
    rows = buffers // MEASURED.buffers_per_row
    programs = sum(rung <= rows for rung in MEASURED.ladder) * MEASURED.program
    assert memory + buffers + programs == size
    peak = Peak(MEASURED.weights + MEASURED.fixed, MEASURED.per_row)
    assert peak.fits(rows, memory - OVERHEAD)  # what the worker reckons with
    assert rows == 64 or not peak.fits(rows + 2, memory - OVERHEAD)
    assert rows == {4: 5, 8: 36, 15: 64}[size // GB]
    places.release()


def test_models_that_share_a_worker_have_room_together(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.engine.places.likely_need", lambda *_: MEASURED)
    alone = _places("a.keras", gpu_memory=8 * GB)
    assert alone.environment(0)[ROWS] == ""
    alone.release()
    both = _places("a.keras", "b.keras", gpu_memory=8 * GB)
    rows = json.loads(both.environment(0)[ROWS])
    both.release()
    needs = dict.fromkeys(("a", "b"), MEASURED)
    assert rows.keys() == needs.keys()
    assert worker_need(needs, rows) <= 8 * GB
    assert 1 < max(rows.values()) < 36  # which one alone has


def test_a_worker_that_starts_again_gets_what_the_one_before_it_used(
    machine: Machine,  # noqa: F811
) -> None:
    model = machine.place / "model.h5"
    with model.open("wb") as file:
        file.truncate(3 * GB // 2)
    machine.set({"uuid": CARD, "total": 24 * GB})
    places = _places(str(model))
    own, programs = 21 * GB // 2, 3 * GB // 2
    taken = OVERHEAD + own + programs
    machine.set({"uuid": CARD, "total": 24 * GB, "used": taken, "processes": [[4711, taken]]})
    before = int(places.environment(0)[MEMORY])
    _settle(places, 4711)
    assert _promised() == [taken + taken // 10 + (256 << 20)]
    assert own < int(places.environment(0)[MEMORY]) - OVERHEAD <= before - OVERHEAD
    places.release()


def test_cpus_have_no_share(machine: Machine) -> None:  # noqa: F811
    places = _places(devices="cpu", workers=2)
    assert len(places) == 2
    assert places.environment(1)["CUDA_VISIBLE_DEVICES"] == "-1"
    assert places.numbers(1) == ""
    assert places.settle(1, 1, True) is None
    assert _promised() == []


def test_workers_on_one_card_have_equal_shares(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mps, "running", lambda: True)
    places = _places(devices="gpu", workers=3)
    sizes = _promised()
    assert sum(sizes) == 16 * GB
    assert max(sizes) - min(sizes) <= 2
    places.release()


def test_a_model_that_cannot_fit_is_refused_before_anything_starts(
    machine: Machine,  # noqa: F811
) -> None:
    large = machine.place / "large.h5"
    with large.open("wb") as file:
        file.truncate(60 * GB)  # a third of it may be weights
    machine.set({"uuid": "GPU-a", "total": 80 * GB}, {"uuid": "GPU-b"})
    with pytest.raises(DeviceMemoryError) as refused:
        _places(str(large), devices="gpu")
    assert "20.0 GB" in str(refused.value)
    assert "16.0 GB left of 16.0 GB" in str(refused.value)
    assert _promised() == []  # nor is what was taken of the first card kept
    places = _places(str(large), devices="gpu:0", gpu_memory=30 * GB)
    assert _promised() == [30 * GB]
    places.release()


def test_a_card_without_room_is_left_out_if_no_card_was_named(
    machine: Machine,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine.set({"uuid": "GPU-a", "used": 16 * GB - 1}, {"uuid": "GPU-b", "name": "Free"})
    places = _places()
    assert len(places) == 1
    assert places.label(0) == "gpu:1 Free"
    assert "gpu:0 Fake is left out" in caplog.text
    assert "GPU-a): 0 MB left of 16.0 GB" in caplog.text
    assert [promise.card for promise in ledger.promises()] == ["GPU-b"]
    places.release()
    for settings in ({"devices": "gpu"}, {"devices": ["gpu:0", "gpu:1"]}, {"workers": 2}):
        with pytest.raises(DeviceMemoryError, match="GPU-a"):
            _places(**settings)
    machine.set({"uuid": "GPU-a", "used": 16 * GB - 1}, {"uuid": "GPU-b", "used": 16 * GB - 1})
    with pytest.raises(DeviceMemoryError, match="GPU-a"):
        _places()
    assert _promised() == []


def test_what_was_not_needed_is_given_back_when_a_worker_is_warm(
    machine: Machine,  # noqa: F811
) -> None:
    places = _places()
    _settle(places, 4711)  # whose use is not known
    assert _promised() == [16 * GB]
    machine.set({"uuid": CARD, "used": 4 * GB, "processes": [[4711, 4 * GB], [1, None]]})
    _settle(places, 4711)
    (held,) = _promised()
    assert 4 * GB < held < 5 * GB
    other = _places(gpu_memory=10 * GB)
    assert int(places.environment(0)[MEMORY]) == held  # what another process in its place gets
    machine.set({"uuid": CARD, "used": 8 * GB, "processes": [[4711, 8 * GB]]})
    _settle(places, 4711)
    assert sorted(_promised()) == [held, 10 * GB]  # never more than it has
    machine.set({"uuid": CARD, "used": GB, "processes": [[4712, GB]]})
    assert other.settle(0, 4712, True) is None
    assert sorted(_promised()) == [held, 10 * GB]  # what the settings say stays
    places.release()
    other.release()


def test_who_waits_for_the_ledger_is_not_the_engine(
    machine: Machine,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    places = _places()
    machine.set({"uuid": CARD, "used": 4 * GB, "processes": [[4711, 4 * GB]]})
    with open(machine.ledger / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a process had been stopped in the middle
        settling = places.settle(0, 4711, True)
        assert settling is not None
        assert settling.is_alive()
    settling.join(20)
    assert _promised() < [5 * GB]
    shutil.rmtree(machine.ledger)
    _settle(places, 4711)
    assert "worker 0 keeps all that it was promised of gpu:0 Fake A: FileNotFound" in caplog.text
    places.release()


def test_two_engines_are_never_promised_the_same_memory(machine: Machine) -> None:  # noqa: F811
    model = penstock.Model(f"{FUNCTIONS}:doubled")
    with penstock.Engine(model, name="one", gpu_memory=10 * GB) as one:
        assert one.statistics().workers[0].device.startswith("gpu:0")
        np.testing.assert_array_equal(one.predict(np.ones(3)), np.full(3, 2.0))
        assert _promised() == [10 * GB]
        two = penstock.Engine(model, name="two", gpu_memory=7 * GB)
        with pytest.raises(DeviceMemoryError, match=r"6\.0 GB left of 16\.0 GB.*engine one"), two:
            pass
        with penstock.Engine(model, name="three", gpu_memory=6 * GB):
            assert sorted(_promised()) == [6 * GB, 10 * GB]
    until(lambda: not _promised())


LOOKS = """
import numpy as np

def limit(x):
    import tensorflow as tf  # a fake
    (megabytes,) = tf.limits.values()
    return np.full(len(x), megabytes)
"""


def test_a_workers_tensorflow_is_limited_to_its_share(machine: Machine) -> None:  # noqa: F811
    (machine.place / "looks.py").write_text(LOOKS)
    model = penstock.Model(f"{machine.place / 'looks.py'}:limit")
    with penstock.Engine(model, gpu_memory=4 * GB) as engine:
        (megabytes,) = engine.predict(np.ones(1))
    own = 4 * GB - OVERHEAD
    assert megabytes == own - own // 8 >> 20  # the rest is for buffers


WHERE = """
import os
import numpy as np

def card(x):
    return np.full(len(x), int(os.environ["CUDA_VISIBLE_DEVICES"].removeprefix("GPU-")))
"""


def test_two_cards_have_a_worker_each_and_one_queue(machine: Machine) -> None:  # noqa: F811
    machine.set({"uuid": "GPU-7"}, {"uuid": "GPU-9"})
    (machine.place / "where.py").write_text(WHERE)
    model = penstock.Model(f"{machine.place / 'where.py'}:card", max_batch=1)

    def both() -> bool:
        asked = [engine.submit(np.ones(1)) for _ in range(64)]
        return {int(each.result(20)[0]) for each in asked} == {7, 9}

    with penstock.Engine(model, name="two", gpu_memory=4 * GB) as engine:
        assert sorted(promise.card for promise in ledger.promises()) == ["GPU-7", "GPU-9"]
        until(both)
        labels = [worker.device for worker in engine.statistics().workers]
        assert [label.split()[0] for label in labels] == ["gpu:0", "gpu:1"]


GREEDY = """
import os
from penstock.errors import DeviceMemoryError

class Greedy:
    def __init__(self):
        if int(os.environ["PENSTOCK_GPU_SQUEEZED"] or 0) < WANTED:
            raise DeviceMemoryError("out of memory while trying to allocate 4.90MiB")

    def __call__(self, x):
        return x
"""


@pytest.mark.parametrize("wanted", [0, 2, 3])
def test_a_worker_that_runs_out_of_memory_as_it_loads_begins_anew_with_less(
    machine: Machine,  # noqa: F811
    wanted: int,
) -> None:
    (machine.place / "greedy.py").write_text(GREEDY.replace("WANTED", str(wanted)))
    engine = penstock.Engine(f"{machine.place / 'greedy.py'}:Greedy", gpu_memory=4 * GB)
    if wanted > 2:
        with pytest.raises(DeviceMemoryError) as refused, engine:
            pass
        told = str(refused.value)  # with the numbers
        assert "allocate 4.90MiB" in told
        assert "it had 4.0 GB of gpu:0" in told
        until(lambda: not _promised())
        return
    with engine:
        assert engine.predict(np.ones(3)).tolist() == [1, 1, 1]
        (worker,) = engine.statistics().workers
        assert worker.starts == 1 + wanted


HUNGRY = """
import json, os, pathlib

class Hungry:
    def __init__(self):
        card = {"uuid": "GPU-aaaa-1", "used": 2 << 30, "processes": [[os.getpid(), 2 << 30]]}
        new = pathlib.Path(os.environ["FAKE_NVML"] + ".worker")
        new.write_text(json.dumps([card]))
        new.rename(os.environ["FAKE_NVML"])

    def __call__(self, x):
        return x
"""


def test_an_engine_settles_when_its_worker_is_warm(machine: Machine) -> None:  # noqa: F811
    (machine.place / "hungry.py").write_text(HUNGRY)
    model = penstock.Model(f"{machine.place / 'hungry.py'}:Hungry")
    with penstock.Engine(model, name="one"):
        until(lambda: _promised() == [2 * GB + 2 * GB // 10 + (256 << 20)])
        with penstock.Engine(model, name="two", gpu_memory=8 * GB):
            assert len(_promised()) == 2
    until(lambda: not _promised())
