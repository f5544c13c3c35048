"""`penstock doctor`: on this machine, and on machines that lack something."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli.doctor import deep, gpus, machine, packages, places
from penstock.cli.doctor.finding import Status

LIMIT = 40
SOURCE = Path(penstock.__file__).parent.parent


def diagnosed(shop, *arguments, **environment):
    """The exit code, and the findings by name."""
    done = subprocess.run(
        shop.command("doctor", "--json", *arguments),
        cwd=shop.place,
        env={**shop.environment, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert done.returncode == bool(told["problems"])
    statuses = [finding["status"] for finding in told["findings"]]
    assert told["problems"] == statuses.count("problem")
    assert told["notes"] == statuses.count("note")
    assert not any(f["status"] == "problem" and not f["advice"] for f in told["findings"])
    return done.returncode, {finding["name"]: finding for finding in told["findings"]}


def test_this_machine(shop):
    _, found = diagnosed(shop)
    for name in ("python", "system", "files", "memory files", "sockets", "processes"):
        assert found[name]["status"] == "ok", found[name]
    assert found["socket folder"]["status"] == "ok"
    assert "will be made" in found["socket folder"]["text"]
    assert found["runtime folder"]["text"] == f"PENSTOCK_DIR is {shop.folder}"
    assert found["cache"]["status"] == "ok"
    assert not shop.folder.exists()  # it only looked


def test_in_words(shop):
    done = shop.run("doctor")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok       python")
    assert lines[-1].endswith(("notes", "note"))
    assert lines[-1].startswith("no problems" if done.returncode == 0 else lines[-1][0])


def test_engines_that_run(shop):
    up = shop.json("up", "shop:double", "--workers", 3)
    _, found = diagnosed(shop)
    assert found["engine double"]["status"] == "ok"
    assert (
        f"process {up['pid']}, ready, 3 of 3 workers ready, 0 clients"
        in (found["engine double"]["text"])
    )
    assert "is private, and takes sockets" in found["socket folder"]["text"]
    few = len(os.sched_getaffinity(0)) < 3
    assert ("workers" in found) == few
    os.kill(up["pid"], signal.SIGSTOP)
    try:
        code, found = diagnosed(shop)
    finally:
        os.kill(up["pid"], signal.SIGCONT)
    assert code == 1
    assert "does not answer" in found["engine double"]["text"]
    assert str(up["pid"]) in found["engine double"]["advice"]
    assert sorted(path.name for path in shop.folder.iterdir()) == ["double.lock", "double.sock"]


def test_what_killed_engines_left_behind_is_told_and_left(shop):
    shop.folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(shop.folder / "old.sock"))
    _, found = diagnosed(shop)
    assert found["leftovers"]["status"] == "note"
    assert "old.sock" in found["leftovers"]["text"]
    assert (shop.folder / "old.sock").exists()


# ── what can be wrong ───────────────────────────────────────────────────────────────────────────


def test_a_folder_that_others_can_enter(shop):
    shop.folder.mkdir(mode=0o755)
    code, found = diagnosed(shop)
    assert code == 1
    assert "open to others" in found["socket folder"]["text"]
    assert f"chmod 700 {shop.folder}" in found["socket folder"]["advice"]


def test_a_folder_that_cannot_be_made(shop):
    (shop.place / "file").touch()
    code, found = diagnosed(shop, PENSTOCK_DIR=str(shop.place / "file" / "run"))
    assert code == 1
    assert "cannot be made" in found["socket folder"]["text"]
    assert "PENSTOCK_DIR" in found["socket folder"]["advice"]


def test_a_folder_that_takes_no_sockets(shop):
    code, found = diagnosed(shop, "--folder", "/proc/self")
    assert code == 1
    assert found["socket folder"]["status"] == "problem"
    assert "runtime folder" not in found


def test_a_runtime_folder_that_is_none(shop):
    environment = {"PENSTOCK_DIR": "", "XDG_RUNTIME_DIR": str(shop.place / "none")}
    code, found = diagnosed(shop, **environment)
    assert code == 1
    assert "which is no folder" in found["runtime folder"]["text"]
    (shop.place / "none").mkdir()
    assert diagnosed(shop, **environment)[1]["runtime folder"]["status"] == "ok"


def test_a_cache_that_cannot_be_written(shop):
    (shop.place / "file").touch()
    _, found = diagnosed(shop, PENSTOCK_CACHE=str(shop.place / "file" / "cache"))
    assert found["cache"]["status"] == "note"
    assert "PENSTOCK_CACHE" in found["cache"]["advice"]


def test_the_cache_is_measured(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.json").write_bytes(bytes(3 << 20))
    assert "1 files, 3.0 MB" in places._cache(tmp_path).text


def test_few_files(shop):
    line = f"ulimit -n 512; exec {' '.join(shop.command('doctor', '--json'))}"
    done = subprocess.run(
        ["bash", "-c", line], env=shop.environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 1
    (files,) = [f for f in json.loads(done.stdout)["findings"] if f["name"] == "files"]
    assert "512 files" in files["text"]
    assert "ulimit" in files["advice"]


def test_a_sandbox_without_memory_files(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(socket, "socketpair", refuse)
    found = {finding.name: finding for finding in machine.findings()}
    for name in ("memory files", "processes", "sockets"):
        assert found[name].status is Status.PROBLEM
        assert "Operation not permitted" in found[name].text


def test_no_descriptors_are_left_open():
    before = len(os.listdir("/proc/self/fd"))
    list(machine.findings())
    assert len(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_a_quota_on_cores(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text(f"{1 << 29}\n")
    (tmp_path / "memory.current").write_text(f"{3 << 27}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 27}\n")
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    found = {finding.name: finding for finding in machine.findings()}
    assert "may use 0.5 at a time" in found["cores"].text
    assert found["memory"].status is Status.NOTE
    assert found["memory"].text == "0.2 of 0.5 GB free"


# ── packages: an environment with nothing but what the command needs ────────────────────────────


class Bare:
    """Python with click, psutil and what is made up, and nothing else."""

    def __init__(self, shop) -> None:
        self._shop = shop
        self._place = shop.place / "packages"
        self._place.mkdir()
        for name in ("click", "psutil"):
            found = importlib.util.find_spec(name)
            assert found is not None
            (self._place / name).symlink_to(found.submodule_search_locations[0])

    def install(self, name: str, version: str, module: str = "") -> None:
        info = self._place / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if module:
            (self._place / f"{name.partition('-')[0]}.py").write_text(module)

    def doctor(self, *arguments):
        environment = {
            **self._shop.environment,
            "PYTHONPATH": f"{SOURCE}:{self._place}",
            "PATH": str(self._place),
        }
        environment.pop("KERAS_BACKEND", None)
        done = subprocess.run(
            [sys.executable, "-S", "-m", "penstock", "doctor", "--json", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.stdout, done.stderr
        told = json.loads(done.stdout)
        return {finding["name"]: finding for finding in told["findings"]}


@pytest.fixture
def bare(shop):
    return Bare(shop)


def no_gpu() -> bool:
    return not gpus.cards().cards


def test_without_tensorflow(bare):
    found = bare.doctor("--deep")
    assert found["tensorflow"]["status"] == "note"
    extra = "penstock[cpu]" if no_gpu() else "penstock[gpu]"
    assert found["tensorflow"]["advice"] == f"pip install '{extra}'"
    assert "tensorflow runs" not in found
    assert "keras" not in found


def test_two_tensorflows(bare):
    bare.install("tensorflow", "2.21.0")
    bare.install("tensorflow-cpu", "2.21.0")
    found = bare.doctor()["tensorflow"]
    assert found["status"] == "problem"
    assert "pip uninstall -y tensorflow tensorflow-cpu && pip install" in found["advice"]


def test_a_tensorflow_that_does_not_start(bare):
    bare.install("tensorflow-cpu", "2.21.0", "raise ImportError('libsomething.so is missing')")
    found = bare.doctor("--deep")
    assert found["tensorflow runs"]["status"] == "problem"
    assert "libsomething.so is missing" in found["tensorflow runs"]["text"]
    assert found["keras"]["status"] == "problem"
    assert "not installed" in found["keras"]["text"]


@pytest.mark.parametrize(
    ("versions", "gpu", "name", "status", "words"),
    [
        ({"tensorflow-cpu": "2.15.0"}, 0, "tensorflow", "problem", "Penstock needs 2.21"),
        ({"tensorflow-cpu": "2.21.0"}, 0, "tensorflow", "ok", "tensorflow-cpu 2.21.0"),
        ({"tensorflow-cpu": "2.21.0"}, 1, "tensorflow", "problem", "and there is a GPU"),
        ({"tensorflow-cpu": "2.21.0"}, 4, "tensorflow", "problem", "and there are 4 GPUs"),
        ({"tensorflow": "2.21.0"}, 1, "tensorflow", "note", "without the CUDA libraries"),
        (
            {"tensorflow": "2.21.0", "nvidia-cudnn-cu12": "9.3"},
            1,
            "tensorflow",
            "ok",
            "tensorflow 2.21.0",
        ),
        (
            {"tensorflow": "2.22.0rc1", "keras": "2.14.0"},
            0,
            "keras",
            "problem",
            "needs Keras 3",
        ),
        ({"tensorflow": "2.21.0", "keras": "3.15.1"}, 0, "keras", "ok", "3.15.1"),
        ({"tensorflow": "2.21.0", "tf-keras": "2.19.0"}, 0, "tf-keras", "problem", "does not fit"),
        ({"tensorflow": "2.21.0", "tf-keras": "2.21.1"}, 0, "tf-keras", "ok", "2.21.1"),
        ({"tensorflow": "2.21.0"}, 0, "tf-keras", "note", "only for models of Keras 2"),
    ],
)
def test_versions(monkeypatch, versions, gpu, name, status, words):
    monkeypatch.setattr(packages, "version_of", lambda package: versions.get(package, ""))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    found = {finding.name: finding for finding in packages.findings(gpu)}
    assert found[name].status.value == status
    assert words in found[name].text


def test_another_backend(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    (found,) = [f for f in packages.findings(0) if f.name == "keras backend"]
    assert found.status is Status.PROBLEM


# ── GPUs ────────────────────────────────────────────────────────────────────────────────────────

VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build
GCC version:  gcc version 12.3.0
"""
INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nBus Type: \t PCIe\n"


def test_what_the_driver_tells_in_proc(tmp_path):
    (tmp_path / "version").write_text(VERSION)
    card = tmp_path / "gpus" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text(INFORMATION)
    assert gpus._from_proc(tmp_path) == gpus.Cards("570.124.06", ["NVIDIA H200"])
    assert gpus._from_proc(tmp_path / "none") == gpus.Cards("", [])


def test_what_nvidia_smi_tells(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho '570.124.06, NVIDIA H200, 143771 MiB'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpus._from_smi() == gpus.Cards("570.124.06", ["NVIDIA H200, 143771 MiB"])
    script.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert gpus._from_smi() == gpus.Cards("", [])


def test_cards_on_the_bus(tmp_path):
    for name, vendor, kind in (
        ("a", "0x10de", "0x030200"),
        ("b", "0x10de", "0x040300"),
        ("c", "0x8086", "0x030000"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    (tmp_path / "d").mkdir()
    assert gpus._on_the_bus(tmp_path) == 1


@pytest.mark.parametrize(
    ("cards", "on_the_bus", "statuses"),
    [
        (gpus.Cards("", []), 0, {"gpu": "ok"}),
        (gpus.Cards("", []), 2, {"gpu": "problem"}),
        (gpus.Cards("570.1", ["H200"]), 1, {"driver": "ok", "gpu 0": "ok"}),
        (gpus.Cards("470.82.01", ["T4"]), 1, {"driver": "problem", "gpu 0": "ok"}),
        (gpus.Cards("570.1", []), 1, {"driver": "ok", "gpu": "problem"}),
    ],
)
def test_what_is_said_of_cards(monkeypatch, cards, on_the_bus, statuses):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_on_the_bus", lambda: on_the_bus)
    assert {f.name: f.status.value for f in gpus.findings(cards)} == statuses


def test_hidden_cards(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (*_, last) = gpus.findings(gpus.Cards("570.1", ["H200"]))
    assert (last.name, last.status) == ("visible gpus", Status.NOTE)
    assert "hides every GPU" in last.text


# ── TensorFlow itself ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_deep(shop, tmp_path_factory):
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    shop.environment["TMPDIR"] = str(tmp_path_factory.mktemp("temporary"))
    _, found = diagnosed(shop, "--deep")
    assert os.listdir(shop.environment["TMPDIR"]) == []
    assert found["tensorflow runs"]["status"] == "ok"
    assert "a tiny model in" in found["tensorflow runs"]["text"]
    assert "tensorflow sees" in found


@pytest.mark.parametrize(
    ("told", "gpu", "status"),
    [
        ({"gpus": ["H200"], "cuda": "12.5"}, 1, "ok"),
        ({"gpus": [], "cuda": "12.5"}, 1, "problem"),
        ({"gpus": [], "cuda": ""}, 1, "problem"),
        ({"gpus": [], "cuda": "12.5"}, 0, "ok"),
    ],
)
def test_what_tensorflow_sees(monkeypatch, told, gpu, status):
    facts = {"version": "2.21.0", "keras": "3.15.1", "import": 1.0, "run": 0.1, **told}
    monkeypatch.setattr(deep, "_PROBE", f"print('told:' + {json.dumps(json.dumps(facts))!s})")
    runs, sees = deep.findings(gpu)
    assert runs.status is Status.OK
    assert sees.status.value == status


def test_a_tensorflow_that_dies(monkeypatch):
    monkeypatch.setattr(deep, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    (found,) = deep.findings(0)
    assert "SIGILL" in found.text


def test_a_tensorflow_that_hangs(monkeypatch):
    monkeypatch.setattr(deep, "_PROBE", "import time; time.sleep(600)")
    monkeypatch.setattr(deep, "_SECONDS", 0.5)
    (found,) = deep.findings(0)
    assert found.status is Status.PROBLEM
