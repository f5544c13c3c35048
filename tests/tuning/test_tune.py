"""Tuning as people do it: a process that is thrown away, a plan, engines that start from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import penstock
from penstock import launch
from penstock.devices import ledger
from penstock.devices.limit import OVERHEAD
from penstock.errors import ConfigError, DeviceMemoryError, ModelLoadError
from tests.conditions import until
from tests.devices.conftest import GB, Machine, machine  # noqa: F401


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "100")


def _command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "tune", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=55)


@pytest.fixture(scope="module")
def tuned(net: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> penstock.Plan:
    """The plan of the network on the CPU, measured by the command."""
    picture = tmp_path_factory.mktemp("picture") / "plan.png"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(cache))
        done = _command(net, "--device", "cpu", "--json", "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert "measuring batches of 16 ..." in done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    plan = penstock.Plan.from_json(json.loads(done.stdout))
    assert not plan.cached
    return plan


def test_a_plan_says_what_was_measured(tuned: penstock.Plan, net: Path) -> None:
    assert tuned.model == "net"
    assert tuned.source == str(net)
    assert tuned.device == "cpu"
    assert isinstance(tuned.modes[tuned.mode], dict)
    assert {size.rows for size in tuned.sizes} >= {1, 16, tuned.max_batch}
    assert all(size.latency > 0 and size.rows_per_second > 0 for size in tuned.sizes)
    best = max(size.rows_per_second for size in tuned.sizes if size.measured)
    assert tuned.rows_per_second >= 0.98 * best
    assert tuned.reasons["max_batch"]
    assert tuned.memory_needed == 0


def test_a_second_run_answers_without_a_process(
    tuned: penstock.Plan, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "start", none)
    again = penstock.tune(net, device="cpu")
    assert again.cached
    assert again.sizes == tuned.sizes
    assert "known from an earlier run" in str(again)
    for other in ({"max_batch": 8}, {"precision": "mixed_bfloat16"}, {"sample": "m:f"}):
        with pytest.raises(AssertionError, match="a process was started"):
            penstock.tune(net, device="cpu", **other)


def test_an_engine_starts_from_the_plan(tuned: penstock.Plan, net: Path) -> None:
    with penstock.Engine(net, devices="cpu") as engine:
        (model,) = engine.statistics().models
    assert model.facts["cached"]
    assert model.max_batch == tuned.max_batch
    assert model.facts["mode"] == tuned.mode
    assert model.facts["max_batch"] == tuned.max_batch


def test_the_command_prints_a_table_with_reasons(tuned: penstock.Plan, net: Path) -> None:
    done = _command(net, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("net on cpu\n")
    lines = done.stdout.splitlines()
    (largest,) = [line for line in lines if line.endswith("largest")]
    assert f"{tuned.rows_per_second:,.0f}" in largest
    assert f"- largest batch {tuned.max_batch}: {tuned.reasons['max_batch'][:20]}" in done.stdout
    assert f"- mode {tuned.mode} (taken): " in done.stdout


def test_the_caller_loads_neither_numpy_nor_tensorflow(tuned: penstock.Plan, net: Path) -> None:
    code = f"""
        import sys, penstock
        assert penstock.tune({str(net)!r}, device="cpu").cached
        print(sorted(sys.modules.keys() & {{"numpy", "tensorflow", "keras", "matplotlib"}}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_what_cannot_be_tuned_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def double(x):\n    return x + x\n")
    with pytest.raises(ModelLoadError, match=r"double is a plain function: there is nothing"):
        penstock.tune(f"{tmp_path / 'plain.py'}:double", device="cpu")
    with pytest.raises(ModelLoadError, match=r"there is no file or folder"):
        penstock.tune(tmp_path / "none.keras", device="cpu")
    with pytest.raises(ConfigError, match=r"unknown setting 'colour'"):
        penstock.tune("net.keras", device="cpu", colour="red")
    with pytest.raises(ConfigError, match=r"max_batch: say it of the model"):
        penstock.tune(penstock.Model("net.keras"), max_batch=3)
    with pytest.raises(ConfigError, match=r"no card is 'gpu:7'"):
        penstock.tune("net.keras", device="gpu:7")


def test_a_model_that_does_not_fit_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import penstock.errors\n\n\nclass Large:\n    def __init__(self):\n"
        "        raise penstock.errors.DeviceMemoryError('9 GB, and 1 GB is left')\n"
    )
    with pytest.raises(DeviceMemoryError, match="9 GB, and 1 GB is left"):
        penstock.tune(f"{tmp_path / 'large.py'}:Large", device="cpu", timeout=float("inf"))


_LOOKS = """
import tensorflow  # a fake

raise penstock.errors.DeviceMemoryError(f"{tensorflow.limits} {penstock.devices.ledger.promises()}")
"""


def test_on_a_gpu_it_has_a_share_and_keeps_to_it(
    machine: Machine,  # noqa: F811
) -> None:
    """Of the card with the most room; what is promised to others is not free."""
    machine.set({"uuid": "GPU-a", "used": 15 * GB}, {"uuid": "GPU-b", "name": "Roomy"})
    taken = ledger.take(6 * GB, "another", card="GPU-b")
    (machine.place / "looks.py").write_text(
        f"import penstock.devices.ledger\nimport penstock.errors\n{_LOOKS}"
    )
    source = f"{machine.place / 'looks.py'}:model"
    with pytest.raises(DeviceMemoryError) as told:
        penstock.tune(source)
    own = 10 * GB - OVERHEAD
    assert f"{{'GPU-b': {own - own // 8 >> 20}}}" in str(told.value)
    assert f"size={10 * GB}, pid={os.getpid()}, purpose='tuning model'" in str(told.value)
    assert [promise.purpose for promise in ledger.promises()] == ["another"]
    full = ledger.take(10 * GB - OVERHEAD // 2, "a third", card="GPU-b")
    with pytest.raises(
        DeviceMemoryError, match=r"gpu:1 \(Roomy, GPU-b\): 350 MB left of 16.*third"
    ):
        penstock.tune(source, device="gpu:1")
    full.release()
    taken.release()


def test_a_damaged_file_is_told_as_that(net: Path, tmp_path: Path) -> None:
    data = net.read_bytes()
    for name, at in (("content", 60), ("header", -30)):
        bad = tmp_path / f"{name}.keras"
        where = data.index(b"config.json") + at
        bad.write_bytes(data[:where] + bytes(8) + data[where + 8 :])
        done = _command(bad, "--device", "cpu")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "it is damaged" in done.stderr


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(
    net: Path, tmp_path: Path
) -> None:
    done = _command(net, "--device", "cpu", "--max-batch", 3, "--plot", tmp_path / "none" / "a.png")
    assert done.returncode != 0
    assert f"there is no folder {tmp_path / 'none'}" in done.stderr
    assert "starting a process" not in done.stderr


@pytest.mark.parametrize("timeout", ["nan", "0", "-1"])
def test_a_time_that_is_none_is_refused(net: Path, timeout: str) -> None:
    done = _command(net, "--device", "cpu", "--max-batch", 3, "--timeout", timeout)
    assert done.returncode != 0
    assert "timeout: expected seconds, more than 0" in done.stderr


_WAITS = """
import time

while True:
    time.sleep(0.01)
"""


def _children() -> list[int]:
    return launch.children(os.getpid())


def test_a_deadline_and_an_interrupt_end_the_process(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(_WAITS)
    source = f"{tmp_path / 'waits.py'}:model"
    before = _children()
    with pytest.raises(ModelLoadError, match="took too long"):
        penstock.tune(source, device="cpu", timeout=0.5)
    assert _children() == before

    def interrupt(text: str) -> None:
        if text == "loading TensorFlow":  # so the process runs
            assert _children() != before
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        penstock.tune(source, device="cpu", tell=interrupt)
    assert _children() == before


def test_a_process_whose_caller_is_killed_ends_too(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(_WAITS)
    code = f"import penstock; penstock.tune({str(tmp_path / 'waits.py')!r} + ':m', device='cpu')"
    caller = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: bool(launch.children(caller.pid)))
        (measuring,) = launch.children(caller.pid)
        watched = os.pidfd_open(measuring)
    finally:
        caller.kill()
        caller.wait()
    try:
        until(lambda: _ended(watched))
    finally:
        os.close(watched)


def _ended(pidfd: int) -> bool:
    import select

    return bool(select.select([pidfd], [], [], 0)[0])
