"""From settings to placements, and whether MPS runs."""

from __future__ import annotations

import os
import socket

import pytest

from penstock.devices import mps
from penstock.devices.choose import Placement, resolve
from penstock.errors import ConfigError


@pytest.fixture
def two(machine):
    machine.set({"uuid": "GPU-a", "name": "Fast"}, {"uuid": "GPU-b"})
    return machine


def devices(*arguments) -> list[str]:
    return [placement.device for placement in resolve(*arguments)]


def test_where_workers_go(two) -> None:
    assert devices("auto", 0) == ["GPU-a", "GPU-b"]
    assert devices("gpu", 1) == ["GPU-a"]
    assert devices("cpu", 0) == ["cpu"]
    assert devices("cpu", 3) == ["cpu"] * 3
    assert devices("gpu:1", 0) == ["GPU-b"]
    assert devices(("gpu:1", "cpu", "GPU-a"), 0) == ["GPU-b", "cpu", "GPU-a"]


def test_without_a_gpu(two) -> None:
    two.set()
    assert devices("auto", 0) == ["cpu"]
    assert devices("auto", 2) == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="no GPU was found"):
        resolve("gpu", 0)
    with pytest.raises(ConfigError, match=r"no card is 'gpu:0'.*PCI bus.*no GPU was found"):
        resolve(["gpu:0"], 0)


def test_hidden_cards(two, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert devices("auto", 0) == ["GPU-b"]
    with pytest.raises(ConfigError, match=r"gpu:0 \(Fast, GPU-a\) is hidden by CUDA_VISIBLE"):
        resolve(["gpu:0"], 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices("auto", 0) == ["cpu"]
    with pytest.raises(ConfigError, match="hides the 2 GPUs"):
        resolve("gpu", 0)


@pytest.mark.parametrize(
    ("chosen", "workers", "words"),
    [
        ("auto", 3, "3 workers for 2 GPUs"),
        (["gpu:0", "GPU-a"], 0, "2 workers for 1 GPU:"),
        (["gpu:0", "cpu"], 4, "2 workers for 1 GPU:"),
        (["gpu:0", "gpu:1"], 1, "2 devices are named for 1 workers"),
        (["tpu"], 0, "no card is 'tpu'; expected cpu, gpu:N"),
        ("tpu", 0, "no card is 'tpu'; expected auto, cpu, gpu, gpu:N"),
        ([], 0, "empty list"),
    ],
)
def test_what_is_refused(two, monkeypatch, chosen, workers, words) -> None:
    monkeypatch.setattr(mps, "running", lambda: False)
    with pytest.raises(ConfigError, match=words):
        resolve(chosen, workers)


def test_several_on_a_card_where_mps_runs(two, monkeypatch) -> None:
    monkeypatch.setattr(mps, "running", lambda: True)
    assert devices("auto", 3) == ["GPU-a", "GPU-b", "GPU-a"]


def test_environments() -> None:
    assert Placement("cpu").environment() == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "PENSTOCK_GPU_MEMORY": "",
        "PENSTOCK_GPU_BUFFERS": "",
        "PENSTOCK_GPU_ROWS": "",
        "PENSTOCK_GPU_SQUEEZED": "",
    }
    assert Placement("GPU-a", "gpu:0", 5 << 30, 1 << 30).environment(squeezed=2) == {
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PENSTOCK_GPU_MEMORY": str(5 << 30),
        "PENSTOCK_GPU_BUFFERS": str(1 << 30),
        "PENSTOCK_GPU_ROWS": "",
        "PENSTOCK_GPU_SQUEEZED": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


@pytest.fixture
def pipes(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    return tmp_path


def test_mps_behind_a_pipe(pipes) -> None:
    assert not mps.running()
    os.mkfifo(pipes / "control")
    assert not mps.running()  # nobody reads it
    reader = os.open(pipes / "control", os.O_RDONLY | os.O_NONBLOCK)
    assert mps.running()
    os.close(reader)
    assert not mps.running()


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_mps_behind_a_socket(pipes, kind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(pipes / "control"))
        sock.listen()
        assert mps.running()
    assert not mps.running()


def test_mps_among_the_processes(pipes) -> None:
    (pipes / "nvidia-cuda-mps-control.pid").write_text("42\n")
    daemon = pipes / "proc" / "42"
    daemon.mkdir(parents=True)
    (daemon / "cmdline").write_bytes(b"/usr/bin/nvidia-cuda-mps-control\0-d\0")
    assert mps.running(pipes / "proc")
    (daemon / "cmdline").write_bytes(b"/bin/sh\0")
    assert not mps.running(pipes / "proc")
