"""The programs that are meant for a GPU, gone through without one, as real processes.

Here only some of their parts: all of them are gone through by `make gpu-visit ARGS=--rehearse`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.core.rehearsal import RESULTS, SAID

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One network for all."""
    return tmp_path_factory.mktemp("work")


def _rehearse(program: str, *flags: object) -> subprocess.CompletedProcess[str]:
    places = [str(ROOT / "src"), os.environ["PYTHONPATH"]]
    return subprocess.run(
        [sys.executable, "-m", program, "--rehearse", *map(str, flags)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=140,
    )


def _found(out: Path) -> dict[str, Any]:
    assert SAID in (out / "table.txt").read_text()
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def test_clients_of_an_engine(work: Path, tmp_path: Path) -> None:
    flags = (f"--work={work}", f"--out={tmp_path}")
    done = _rehearse("benchmarks.gpu", "--only=crowd,one,tight", "--limit=120", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(SAID)
    assert "tight: left out, it needs a card to fill" in done.stdout
    assert (tmp_path / "plot.png").exists()
    found = _found(tmp_path)
    assert found["rehearsal"]
    assert {name: part["failure"] for name, part in found["parts"].items()} == {
        "crowd": None,
        "one": None,
    }
    broken = _rehearse("benchmarks.gpu", "--only=few,array", "--setting=nonsense=1", *flags)
    assert broken.returncode == 1
    assert "Failed, or out of time: few, array" in broken.stdout
    parts = _found(tmp_path)["parts"]
    assert parts["crowd"]["rows"] == found["parts"]["crowd"]["rows"]  # kept
    assert "benchmarks.gpu.engine" in parts["array"]["failure"]


def test_whole_data_sets(work: Path, tmp_path: Path) -> None:
    flags = ("--data=jpeg", f"--work={work}", f"--out={tmp_path}", "--limit=120")
    done = _rehearse("benchmarks.offline.gpu", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    found = _found(tmp_path)
    assert found["failures"] == {}
    assert [(job["data"], job["written"]) for job in found["jobs"]] == [("jpeg", 60)]
    assert [row["size"] for row in found["limit"][:2]] == [8, 16]


def test_training(tmp_path: Path) -> None:
    flags = ("--only=large", "--ways=penstock", f"--out={tmp_path}", "--limit=120")
    done = _rehearse("benchmarks.train", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turn 1: " in done.stdout
    (row,) = _found(tmp_path)["parts"]["large"]
    assert row["error"] is None
    assert row["report"]["micro_batch"] == 32


def test_a_run_that_is_cut_off_keeps_what_it_has(tmp_path: Path) -> None:
    flags = ("--only=remat,large", "--ways=penstock,kept", f"--out={tmp_path}", "--limit=1.5")
    done = _rehearse("benchmarks.train", *flags)
    assert done.returncode == 1
    assert "large: not begun, no time is left" in done.stdout
    found = _found(tmp_path)
    assert found["failures"] == {"remat": "cut off after 1 s"}


@pytest.mark.parametrize("program", ["gpu.__main__", "offline.gpu", "train.__main__"])
def test_a_rehearsal_keeps_away_from_results(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"benchmarks.{program}").main
    for out in ([], [f"--out={RESULTS / 'some' / 'where'}"]):
        monkeypatch.setattr(sys, "argv", [program, "--rehearse", *out])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert "a rehearsal writes nothing into" in capsys.readouterr().err
