"""`penstock doctor` on a machine with (made-up) cards: who uses them, and what is promised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

from penstock.cli.doctor import gpus
from penstock.cli.doctor.finding import Status
from penstock.config import Model
from penstock.devices import ledger, mps
from penstock.model.cache import Entry
from penstock.model.findings import Findings
from penstock.model.plans import note
from tests.devices.conftest import GB, machine  # noqa: F401


def test_cards_users_and_promises(machine, monkeypatch) -> None:  # noqa: F811
    me = os.getpid()
    machine.set(
        {"uuid": "GPU-a", "used": 3 * GB, "processes": [[me, 2 * GB], [1 << 24, None]]},
        {"uuid": "GPU-gone", "lost": True},
        {"uuid": "GPU-b", "name": "Full", "used": 16 * GB - 1},
    )
    share = ledger.take(6 * GB, "train.py", card="GPU-a")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", "--json"], capture_output=True, text=True
    )
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    share.release()
    assert found["driver"]["text"] == "570.1"
    assert found["gpu 0"]["text"] == "Fake, 13.0 of 16.0 GB free, GPU-a"
    first = found["gpu 0 memory"]
    assert first["status"] == "ok"
    assert first["text"].startswith(f"9.0 GB left; 6.0 GB promised to process {me} (train.py)")
    assert f"({me}) 2.0 GB, process {1 << 24} unknown" in first["text"]
    assert found["gpu 2"]["text"].startswith("Full")
    assert found["gpu 2 memory"]["status"] == "note"
    assert found["mps"]["text"].startswith("not running" if not mps.running() else "running")
    assert found["gpu numbers"]["status"] == "note"
    assert list(machine.ledger.glob("*.promise")) == []


def test_which_models_fit_into_what_is_left(machine, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setenv("PENSTOCK_CACHE", str(machine.place / "cache"))
    machine.set({"uuid": "GPU-a"}, {"uuid": "GPU-b", "used": 15 * GB})
    for name, held in (("small", GB // 8), ("large", 20 * GB)):
        archive = machine.place / f"{name}.keras"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("config.json", json.dumps({"name": name}))
        memory = {"held": held, "fixed": held, "per_row": 8 << 20, "limit": 15 * GB}
        findings = Entry({"content": name})
        findings.write(Findings("frozen", max_batch=256, memory=memory).to_json())
        for card in ("GPU-a", "GPU-b"):
            note(Model(archive), card, findings.path)
    told = [(each.name, each.text) for each in gpus.sharing(gpus.cards()) if "plan" in each.name]
    assert told == [
        ("gpu 0 plan", "large does not fit: a row needs 22.4 GB, 16.0 GB left"),
        ("gpu 0 plan", "small fits: batches of up to 256 rows in 3.0 GB"),
        ("gpu 1 plan", "large does not fit: a row needs 22.4 GB, 1.0 GB left"),
        ("gpu 1 plan", "small fits: batches of up to 21 rows in 1022 MB"),
    ]


def test_a_driver_without_nvml(machine, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (told,) = gpus.sharing(gpus.Cards("570.1", ["H200"]))
    assert told.status is Status.NOTE
    assert "nvidia-ml-py is not installed" in told.text
    assert list(gpus.sharing(gpus.Cards("", []))) == []


def test_a_ledger_that_cannot_be_read(machine) -> None:  # noqa: F811
    ledger.take(GB, "test").release()
    (machine.ledger / "lock").unlink()
    (machine.ledger / "lock").mkdir()
    told = {finding.name: finding for finding in gpus.sharing(gpus.cards())}
    assert told["gpu ledger"].status is Status.PROBLEM
    assert told["gpu 0 memory"].status is Status.OK
