"""Order is kept on the host: a copy is complete before the call that reads it is made.

The same gather, with and without the wait: without it, answers are wrong, so the wait is what makes
them right. In a process of its own, because TensorFlow is in it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

_PROGRAM = """
import os, sys
os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
import numpy as np
import tensorflow as tf
from penstock.config import Model
from penstock.spec import ModelSpec, TensorSpec
from penstock.transport import segment
from penstock.transport.messages import RunItem
from penstock.transport.tensors import plan_of
from penstock.worker.cuda import Cuda
from penstock.worker.device import RunLayout
from penstock.worker.gpu import GpuDevice
from penstock.worker.memory import MappedSegments

ROW, ROWS = 8 << 20, 64

class Sums:
    device, batched, max_batch, changed = "GPU", True, ROWS, False
    spec = ModelSpec((TensorSpec("uint8", (ROW,)),), None)

    def __init__(self):
        @tf.function
        def ends(x):
            with tf.device("/CPU:0"):
                return tf.identity(tf.cast(x[:, -1], tf.int64))
        self.function = ends

    def padded(self, rows):
        return rows

    def __call__(self, x, rows):
        return None, [self.function(x.tensor).numpy()]

tf.zeros(1).numpy()
cuda = Cuda()
memory = MappedSegments()
size = ROW * ROWS
descriptor = segment.create(size)
memory.map(1, 1, size, os.dup(descriptor))
assert not cuda.pin(memory.address(1, 1), size)
bytes_ = np.frombuffer(memory.view(1, 1), np.uint8).reshape(ROWS, ROW)
signature = (TensorSpec("uint8", (ROW,)),)
layout = RunLayout(0, Sums(), signature, plan_of(signature))
items = [RunItem(1, 1, row * ROW, ROW, ROW, 1, 0, 1) for row in range(ROWS)]
device = GpuDevice(memory, cuda)
if sys.argv[1] == "without":
    cuda.wait = lambda stream: None
wrong = 0
for turn in range(1, 21):
    bytes_[:, -1] = turn
    arrays, _ = device.gather(layout, items)
    _, (got,) = device.run(layout, arrays, ROWS)
    wrong += int((got != turn).sum())
    Cuda.wait(cuda, device._stream)
print("wrong" if wrong else "right")
"""


@pytest.mark.parametrize(("wait", "answers"), [("with", "right"), ("without", "wrong")])
def test_the_wait_for_copies_is_what_keeps_the_order(wait: str, answers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, wait],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == [answers], done.stderr[-3000:]
