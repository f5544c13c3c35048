"""The guide to sharing a GPU, followed on a machine with a made-up one."""

from __future__ import annotations

from pathlib import Path

from tests.test_guides import GUIDES, Reader


def test_sharing_a_gpu(machine, tmp_path: Path) -> None:
    text = (GUIDES / "gpus.md").read_text()
    reader = Reader(tmp_path)
    reader.write(text)
    printed = reader.type("python small.py")
    assert printed == "<Claim: 4.0 GB of gpu:0 (Fake A, GPU-aaaa-1)>\n"
    reader.follow(text)
    printed = reader.type("penstock doctor || true")
    assert "gpu 0 memory" in printed
    assert "16.0 GB left; used by nobody" in printed
