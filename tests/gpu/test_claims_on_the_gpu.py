"""A claim on a real card: TensorFlow stays within it, and its end is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.devices import cards, ledger

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("real_card")]

SHARE = 3 << 30
GREEDY = """
import sys
import tensorflow as tf
print(tf.config.get_logical_device_configuration(tf.config.list_physical_devices("GPU")[0]),
      flush=True)
kept = []
try:
    for _ in range(64):
        kept.append(tf.random.normal((64, 1024, 1024)) + 1.0)  # 256 MB
    print("never refused", flush=True)
except tf.errors.ResourceExhaustedError:
    print("refused", len(kept), flush=True)
del kept[-1]
tf.linalg.matmul(tf.ones((512, 512)), tf.ones((512, 512))).numpy()
sys.stdin.readline()
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    if not cards.survey().cards:
        pytest.skip(f"no card: {cards.survey().reason}")
    monkeypatch.setenv("PENSTOCK_LEDGER", str(tmp_path / "ledger"))
    source = Path(cards.__file__).parents[2]
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.timeout(180)
def test_a_greedy_script_stays_within_its_share(environment: dict[str, str]) -> None:
    (before,) = cards.usable_cards()[:1]
    command = [sys.executable, "-m", "penstock", "run", "--gpu-memory", str(SHARE)]
    with subprocess.Popen(
        [*command, "--gpu", before.uuid, "--", sys.executable, "-c", GREEDY],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        limit = process.stdout.readline()
        assert f"memory_limit={(SHARE >> 20) - 700}" in limit, limit
        word, count = process.stdout.readline().split()
        assert word == "refused"
        assert int(count) >= 6  # of 256 MB each
        (during,) = [card for card in cards.usable_cards() if card.uuid == before.uuid]
        (promise,) = ledger.promises()
        room = next(room for room in ledger.rooms() if room.card.uuid == before.uuid)
        taken = during.used - before.used
        print(f"share {SHARE >> 20} MB, taken {taken >> 20} MB; processes {during.processes}")
        assert taken <= SHARE
        assert promise.pid == process.pid
        assert room.left <= before.free - SHARE + (64 << 20)
        process.stdin.write("\n")
    assert process.returncode == 0
    assert ledger.promises() == []
