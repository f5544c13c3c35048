"""A worker whose function computes on the GPU (with cupy), shared by several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("real_card")]

_CLIENT = """
import sys, numpy as np, penstock
client = penstock.connect(sys.argv[1], wait=60)
rng = np.random.default_rng(int(sys.argv[2]))
for _ in range(50):
    x = rng.normal(size=(int(rng.integers(1, 9)), 256)).astype("float32")
    assert np.allclose(client.predict(x), x @ np.full((256, 4), 0.5, "float32"), atol=1e-3)
print("right")
"""

_MODEL = """
import cupy


class Multiply:
    def __init__(self):
        self.weights = cupy.full((256, 4), 0.5, "float32")

    def __call__(self, x):
        return cupy.asnumpy(cupy.asarray(x) @ self.weights)
"""


def test_processes_share_a_function_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    (tmp_path / "multiply.py").write_text(_MODEL)
    source = f"{tmp_path / 'multiply.py'}:Multiply"
    with penstock.Engine(source, folder=str(tmp_path / "engines"), max_batch=32) as engine:
        assert engine.predict(np.ones((100, 256), "float32")).shape == (100, 4)
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", _CLIENT, str(engine.address), str(seed)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in range(4)
        ]
        assert [client.communicate(timeout=60)[0] for client in clients] == ["right\n"] * 4
        assert engine.statistics().requests.failed == 0
