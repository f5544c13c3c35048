"""Parameter servers whose workers read their data themselves: real processes, really killed.

What each row was trained on is counted in the weights, and who has read it in files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.conditions import until
from tests.train.launching import LIMIT, Launcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]  # each starts several TensorFlows

# A row is the unit vector of its number; the loss is the sum of −outputs and the learning rate 1.
# So the weights count how often each row was trained on. The metric adds up 2 to the power of row.
JOB = """
if (HERE / f"gone-{NAME}-{INDEX}").exists():
    await_file(f"back-{NAME}-{INDEX}")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, penstock, tensorflow as tf
ROWS = 13
(HERE / f"{NAME}-{INDEX}.pid").write_text(str(os.getpid()))
READ = open(HERE / f"read-{NAME}-{INDEX}", "a", buffering=1)

class Counting(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -y_pred[:, 0]

class Seen(keras.metrics.Sum):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true)

def build():
    counts = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((ROWS,)), counts])
    model.compile(keras.optimizers.SGD(1.0), Counting(reduction="sum"), metrics=[Seen(name="seen")])
    return model

class Pause(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.at(f"{ATTEMPT}-{epoch}")
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        self.at(f"{ATTEMPT}-{self.epoch}-{batch}")
    def at(self, where):
        if (HERE / f"pause-{where}").exists():
            (HERE / f"paused-{where}").touch()
            await_file(f"go-{where}")

def noted(number):
    READ.write(f"{number}\\n")
    return number

from penstock.train import reading
taken, steps = reading._Stream.step, 0
def step(stream, micros):  # the one before is done: a worker takes one after the other
    global steps
    steps += 1
    if (HERE / f"hang-{NAME}-{INDEX}-{steps}").exists():
        (HERE / f"hangs-{NAME}-{INDEX}").touch()
        for_ever()
    return taken(stream, micros)
reading._Stream.step = step

def row(number):
    number = tf.ensure_shape(tf.numpy_function(noted, [number], tf.int64), [])
    return tf.one_hot(number, ROWS), tf.cast(2 ** number, tf.float32)[None]

def numbered():
    return tf.data.Dataset.range(ROWS)

def of_files():
    files = [str(HERE / f"rows-{part}") for part in range(3)]
    lines = tf.data.TextLineDataset(files)
    return lines.map(lambda line: row(tf.strings.to_number(line, tf.int64))).batch(5)

def tell(history):
    counts = history.model.get_weights()[0][:, 0].tolist()
    told = {"counts": counts, "history": history.history, "report": history.report}
    (HERE / "told").write_text(json.dumps(told))

def fit(x, **options):
    options = {"batch_size": 2, "verbose": 0, "timeout": 40, **options}
    tf.zeros([])  # from here on at the latest, the chief can reach it
    (HERE / f"{NAME}-{INDEX}-of-{os.getpid()}").touch()
    return penstock.train.fit(build, x, callbacks=[Pause()], **options)
"""
ALL = 2.0**13 - 1


@pytest.fixture
def launcher(tmp_path: Path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_workers_read_files_of_their_own_and_the_chief_reads_none(launcher: Launcher) -> None:
    for part, (start, stop) in enumerate([(0, 7), (7, 11), (11, 13)]):
        lines = "".join(f"{number}\n" for number in range(start, stop))
        (launcher.place / f"rows-{part}").write_text(lines)
    job = launcher.script(
        JOB
        + """
validation = numbered().shuffle(ROWS, seed=3)
validation = validation.map(lambda n: (tf.one_hot(n, ROWS), tf.cast(2 ** n, tf.float32)[None]))
first = fit(of_files, epochs=2, validation_data=validation.batch(4), accumulate=2)
tell(first)
told = json.loads((HERE / "told").read_text())
told["later"] = fit(of_files, epochs=1).report["shard"]
try:
    fit(of_files, shard="file")
except penstock.errors.ConfigError as error:
    told["refused"] = str(error)
(HERE / "told").write_text(json.dumps(told))
"""
    )
    done = launcher.run(job, "--workers", 2, "--ps", 1)
    assert done.returncode == 0, done.stdout
    told = json.loads((launcher.place / "told").read_text())
    assert told["counts"] == [2.0] * 13
    assert told["history"]["seen"] == [ALL] * 2
    assert told["history"]["val_seen"] == [ALL] * 2
    assert told["report"]["shard"] == "file"
    # 9 rows (files 0 and 2) and 4, in batches of 2
    assert told["report"]["steps"] == 2 * (5 + 2)
    assert read(launcher, "worker-0") == Counter([*range(7), 11, 12] * 2)
    assert read(launcher, "worker-1") == Counter([*range(7, 11)] * 2)
    assert told["later"] == "chief"  # workers are still in the first one
    assert read(launcher, "chief-0") == Counter(range(13))
    assert "is for the first fit of a script" in told["refused"]


def test_a_part_goes_on_with_another_worker_and_comes_back(launcher: Launcher) -> None:
    job = launcher.script(
        JOB
        + """
data = numbered().shuffle(ROWS, seed=5).map(row).batch(3)
next(iter(data)) if NAME == "chief" else None  # looked at here alone: that changes no order
tell(fit(data, epochs=3))
"""
    )
    for name in ("pause-0-0", "hang-worker-0-3"):
        (launcher.place / name).touch()
    process = launcher.begin(job, "--workers", 2, "--ps", 1, "--restarts", 1)
    await_file(process, launcher.place / "hangs-worker-0")  # in the middle of reading
    (launcher.place / "gone-worker-0").touch()
    (launcher.place / "hang-worker-0-3").unlink()
    pid = launcher.place / "worker-0.pid"
    first = pid.read_text()
    os.kill(int(first), signal.SIGKILL)
    await_file(process, launcher.place / "paused-0-0")  # the epoch is over without it
    before = read(launcher, "worker-0")
    (launcher.place / "back-worker-0").touch()
    until(lambda: pid.read_text() not in ("", first), LIMIT)
    await_file(process, launcher.place / f"worker-0-of-{pid.read_text()}")
    (launcher.place / "go-0-0").touch()
    out = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0, out
    told = json.loads((launcher.place / "told").read_text())
    assert told["counts"] == [3.0] * 13
    assert told["history"]["seen"] == [ALL] * 3
    assert (told["report"]["shard"], told["report"]["steps"]) == ("data", 3 * 7)
    assert read(launcher, "worker-0").total() > before.total()


def test_a_killed_server_restarts_all_in_the_middle_of_their_parts(launcher: Launcher) -> None:
    job = launcher.script(
        JOB
        + """
data = numbered().shuffle(ROWS, seed=5).map(row).batch(3)
tell(fit(data, epochs=3, checkpoint_every=1))
"""
    )
    (launcher.place / "pause-0-1-2").touch()
    process = launcher.begin(
        *(job, "--workers", 2, "--ps", 1, "--restarts", 1, "--checkpoints", "kept")
    )
    await_file(process, launcher.place / "paused-0-1-2")
    os.kill(int((launcher.place / "ps-0.pid").read_text()), signal.SIGKILL)
    out = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0, out
    told = json.loads((launcher.place / "told").read_text())
    assert told["report"]["resumed_at_step"] == 7 + 2  # the third was being told when it died
    assert told["counts"] == [3.0] * 13
    assert told["history"]["seen"] == [ALL] * 3


def test_workers_bring_rows_of_their_own_also_as_arrays(launcher: Launcher) -> None:
    job = launcher.script(
        JOB
        + """
ranges = {("worker", 0): (0, 9), ("worker", 1): (9, ROWS)}
own = slice(*ranges.get((NAME, INDEX), (0, 1)))
x, y = np.eye(ROWS, dtype="float32")[own], (2.0 ** np.arange(ROWS, dtype="float32"))[own, None]
options = {"batch_size": 2, "epochs": 2, "verbose": 0, "shard": "off", "timeout": 40}
tell(penstock.train.fit(build, x, y, validation_data=(x, y), **options))
"""
    )
    done = launcher.run(job, "--workers", 2, "--ps", 1)
    assert done.returncode == 0, done.stdout
    told = json.loads((launcher.place / "told").read_text())
    assert told["counts"] == [2.0] * 13
    assert told["history"]["seen"] == told["history"]["val_seen"] == [ALL] * 2
    assert (told["report"]["shard"], told["report"]["steps"]) == ("off", 2 * (5 + 2))


def test_what_a_worker_cannot_read_is_told_by_the_chief(launcher: Launcher) -> None:
    job = launcher.script(
        JOB
        + """
width = ROWS + (NAME == "worker" and INDEX == 1)
fit(numbered().map(lambda n: (tf.one_hot(n, width), [0.0])).batch(3))
"""
    )
    done = launcher.run(job, "--workers", 2, "--ps", 1)
    assert done.returncode == 1
    told = "InputError: data could not be read on worker 1: InputError: expected data as the chief"
    assert told in done.stdout + done.stderr


def read(launcher: Launcher, task: str) -> Counter[int]:
    return Counter(map(int, (launcher.place / f"read-{task}").read_text().split()))


def await_file(process: subprocess.Popen[str], file: Path) -> None:
    until(lambda: file.exists() or process.poll() is not None, LIMIT + 40)
    assert file.exists(), process.communicate()[0]
