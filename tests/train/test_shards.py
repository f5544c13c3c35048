"""Two workers, real processes, that share a data set by files or bring rows of their own: every row
is trained on exactly once an epoch, though no two workers have equally many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.launching import Launcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# A row is the unit vector of its number; the loss is the sum of −outputs and the learning rate 1.
# So the weights count how often each row was trained on.
JOB = """
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, penstock, tensorflow as tf
penstock.train.prepare(timeout=30)
ROWS = 13

class Counting(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -y_pred[:, 0]

def build():
    counts = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((ROWS,)), counts])
    model.compile(keras.optimizers.SGD(1.0), Counting(reduction="sum"))
    return model

def row(line):
    return tf.one_hot(tf.strings.to_number(line, tf.int32), ROWS), tf.zeros([1])

files, at = [], 0
for count in (7, 4, 2):
    files.append(str(HERE / f"rows-{count}"))
    at += count
    if INDEX == 0:
        text = "".join(f"{number}\\n" for number in range(at - count, at))
        staged = HERE / f"staged-{count}"
        staged.write_text(text)
        staged.rename(files[-1])
for file in files:
    await_file(file)

own = np.eye(ROWS, dtype="float32")[slice(0, 9) if INDEX == 0 else slice(9, ROWS)]
nothing = np.zeros((len(own), 1), "float32")
of_files = tf.data.TextLineDataset(files).map(row).batch(5)
of_own = tf.data.Dataset.from_tensor_slices((own, nothing)).batch(4)
told = {}
validation = (np.eye(ROWS, dtype="float32"), np.zeros((ROWS, 1), "float32"))
batches = []
heard = keras.callbacks.LambdaCallback(on_train_batch_end=lambda at, logs: batches.append(at))
for name, shard, data in (
    ("file", "file", (of_files,)),
    ("auto", "auto", (of_files,)),
    ("off", "off", (of_own,)),
    ("arrays", "off", (own, nothing)),
):
    options = dict(batch_size=4, epochs=2, shuffle=name == "arrays", verbose=0, timeout=30)
    options |= dict(validation_data=validation, callbacks=[heard])
    history = penstock.train.fit(build, *data, shard=shard, **options)
    steps = history.report["steps"], len(batches), history.history["val_loss"]
    told[name] = [history.model.get_weights()[0].ravel().tolist(), history.report["shard"], steps]
    batches.clear()
try:
    fewer = of_own if INDEX else of_files
    penstock.train.fit(build, fewer, shard="data", batch_size=4, verbose=0, timeout=30)
except penstock.errors.ConfigError as error:
    told["fewer"] = str(error)

from penstock.train import agreement, strategies
place = strategies.place("multiworker")
told["largest"] = [agreement.largest(place, number) for number in (3 + INDEX, 8 - INDEX)]
(HERE / f"told-{INDEX}").write_text(json.dumps(told))
"""


@pytest.fixture
def launcher(tmp_path: Path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_every_row_is_trained_on_exactly_once_an_epoch(launcher: Launcher) -> None:
    done = launcher.run(launcher.script(JOB), "--workers", 2)
    assert done.returncode == 0, done.stdout
    for index in range(2):
        told = json.loads((launcher.place / f"told-{index}").read_text())
        assert told.pop("largest") == [4, 8]  # also where it is not the chief's
        assert f"epoch 1 differ: the chief has 4, worker {index} has {(4, 1)[index]}" in told.pop(
            "fewer"
        )
        policies = {name: policy for name, (_, policy, _) in told.items()}
        assert policies == {"file": "file", "auto": "file", "off": "off", "arrays": "off"}
        for name, (counts, _, (steps, heard, losses)) in told.items():
            assert counts == [2.0] * 13, name
            assert (steps, heard) == (10, 10), name  # 9 rows of one worker, two a step
            # A loss is a sum: -1 a row, then -2. Those of batches are averaged by their rows.
            one = (3 * 4 * 4 + 1) / 13 if policies[name] == "file" else (6 * 4 * 4 + 2 * 2) / 26
            assert losses == pytest.approx([-one, -2 * one]), name
