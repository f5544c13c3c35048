"""What goes wrong on a GPU: processes killed in the middle of copies, and too little memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

import penstock
from tests.gpu.test_data_path import ASKER, sums

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

_FLOODER = """
import sys, numpy as np, penstock
client = penstock.connect(sys.argv[1], wait=60)
x = np.zeros((64, 4096), np.uint8)
open_ = [client.submit(x) for _ in range(64)]
print("begun", flush=True)
while True:
    open_.pop(0).result()
    open_.append(client.submit(x))
"""


def _asker(address: object, seed: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASKER, str(address), str(seed), str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_worker_killed_under_load_costs_no_answer(
    engine: Callable[..., penstock.Engine],
) -> None:
    shared = engine("checksum", max_batch=64)
    shared.predict(np.zeros((64, 4096), np.uint8))
    askers = [_asker(shared.address, seed, 6000) for seed in range(4)]
    deadline = time.monotonic() + 60
    while shared.statistics().batches.rows < 2000:
        assert time.monotonic() < deadline
    first = shared.statistics().workers[0].pid
    os.kill(first, signal.SIGKILL)
    assert [asker.communicate(timeout=240)[0] for asker in askers] == ["right\n"] * 4
    worker = shared.statistics().workers[0]
    assert worker.starts == 2
    assert worker.pid != first


def test_clients_killed_while_their_memory_is_read(
    engine: Callable[..., penstock.Engine],
) -> None:
    shared = engine("checksum", max_batch=256)
    shared.predict(np.zeros((256, 4096), np.uint8))
    bystander = _asker(shared.address, 11, 4000)
    for _ in range(8):
        flooder = subprocess.Popen(
            [sys.executable, "-c", _FLOODER, str(shared.address)], stdout=subprocess.PIPE, text=True
        )
        assert flooder.stdout is not None
        assert flooder.stdout.readline() == "begun\n"
        flooder.kill()
        flooder.wait()
        flooder.stdout.close()
    assert bystander.communicate(timeout=240)[0] == "right\n"
    told = shared.statistics()
    assert told.workers[0].starts == 1
    x = np.random.default_rng(1).integers(0, 256, (300, 4096), np.uint8)
    assert np.allclose(shared.predict(x), sums(x), rtol=1e-5)


@pytest.mark.usefixtures("real_card")
def test_out_of_memory_under_load_costs_no_answer(
    engine: Callable[..., penstock.Engine],
) -> None:
    shared = engine("hungry", max_batch=64, gpu_memory=3 << 30, compile="frozen", run_timeout=300.0)
    assert shared.statistics().models[0].facts["max_batch"] == 64
    x = np.random.default_rng(2).normal(size=(256, 8)).astype("float32")
    x[:, 0] = 10.0  # 40 MB a row, twice
    futures = [shared.submit(x[row : row + 1]) for row in range(len(x))]
    got = np.concatenate([future.result(timeout=280) for future in futures])
    assert np.allclose(got, x.sum(1), rtol=1e-3, atol=1e-2)
    told = shared.statistics()
    assert told.requests.failed == 0
    assert told.workers[0].starts == 1
    assert told.models[0].facts["max_batch"] < 64
