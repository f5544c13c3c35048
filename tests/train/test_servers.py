"""Parameter servers: real processes that train, die and come back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import WorkerLost
from penstock.train.cluster import Cluster
from penstock.train.launcher.ports import free_ports
from tests.conditions import until
from tests.forked import script, tensorflow_imported
from tests.model.tensorflow_process import in_tensorflow
from tests.train.launching import LIMIT, PREAMBLE, Launcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]  # each starts several TensorFlows

# A model of two layers on made-up rows; a chief that stops at the end of an epoch when told to.
JOB = """
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, keras, penstock.train, tensorflow as tf
rng = np.random.default_rng(0)
x = rng.normal(size=(150, 4)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")
START = [rng.normal(size=shape).astype("float32") for shape in ((4, 16), (16,), (16, 2), (2,))]

def build(optimizer="sgd"):
    layers = [keras.Input((4,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.set_weights(START)
    model.compile(
        optimizer={
            "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            "adam": lambda: keras.optimizers.Adam(0.01),
            "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        }[optimizer](),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model

class Pause(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if (HERE / f"pause-{ATTEMPT}-{epoch}").exists():
            (HERE / f"paused-{ATTEMPT}-{epoch}").touch()
            await_file(f"go-{ATTEMPT}-{epoch}")

def compiled(model):
    model.compile("sgd", "mse", metrics=[keras.metrics.F1Score()])
    return model

def fit(model, epochs=3, more=(), **options):
    told = dict(validation_data=(x, y), shuffle=False, seed=1, verbose=0)
    told["callbacks"] = [Pause(), *more]
    return penstock.train.fit(model, x, y, batch_size=32, epochs=epochs, **told, **options)
(HERE / f"{NAME}-{INDEX}.pid").write_text(str(os.getpid()))
"""

# The same steps, one after the other, by hand.
EXPECTED = """
def expected(epochs, optimizer="sgd"):
    model = build(optimizer)
    for _ in range(epochs):
        for at in range(0, len(x), 32):
            model.train_on_batch(x[at:at + 32], y[at:at + 32])
    return model
"""


@pytest.fixture
def launcher(tmp_path: Path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_one_worker_with_a_server_trains_as_one_process_does(launcher: Launcher) -> None:
    job = launcher.script(
        JOB
        + EXPECTED
        + """
heard = []
class Hears(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        heard.append(batch)
plain = fit(build, more=[Hears()])
vectors = penstock.train.fit(lambda: compiled(build()), x, np.eye(2)[y], verbose=0).history
halves = fit(build(), accumulate=2)
def two():
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("one", "other")}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(1e-5), "mse")
    return model
aims = dict.fromkeys(("one", "other"), np.arange(len(x), dtype="float32"))  # the last are largest
outputs = penstock.train.fit(
    two, x, aims, batch_size=32, validation_data=(x, aims), shuffle=False, verbose=0
).history
rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
read = penstock.train.fit(
    build, rows, batch_size=32, epochs=3, validation_data=rows, verbose=0, shuffle=False
)
apart = {}
for name, by, trained in (
    ("plain", "sgd", plain),
    ("halves", "sgd", halves),
    ("read", "sgd", read),
    ("adam", "adam", fit(lambda: build("adam"), accumulate=3)),
    ("adamw", "adamw", fit(lambda: build("adamw"), accumulate=2)),
):
    pairs = zip(trained.model.get_weights(), expected(3, by).get_weights(), strict=True)
    apart[name] = max(float(abs(a - b).max()) for a, b in pairs)
try:
    penstock.train.fit(build, x, y, verbose=0, validation_data=(x, y, y, y))
except ValueError as error:
    refused = f"{type(error).__name__}: {error}"
def averaging():
    model = build()
    averages = keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)
    model.compile(averages, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
try:
    fit(averaging, epochs=1)
except Exception as error:
    averaged = f"{type(error).__name__}: {error}"
try:
    penstock.train.fit(build, np.where(x > 1.5, np.nan, x), y, batch_size=32, verbose=0)
except penstock.errors.TrainingError as error:
    spoilt = str(error)
told = {"refused": refused, "averaged": averaged, "spoilt": spoilt, "apart": apart,
        "history": plain.history, "report": plain.report,
        "shards": [plain.report["shard"], read.report["shard"]], "heard": heard,
        "vectors": vectors["f1_score"], "outputs": outputs,
        "evaluated": plain.model.evaluate(x, y, verbose=0, return_dict=True)}
(HERE / "told").write_text(json.dumps(told))
"""
    )
    done = launcher.run(job, "--workers", 1, "--ps", 1)
    assert done.returncode == 0, done.stdout
    told = json.loads((launcher.place / "told").read_text())
    assert all(apart < 2e-6 for apart in told["apart"].values()), told["apart"]
    assert told["refused"].startswith("InputError: expected validation_data of (x, y)")
    assert told["refused"].endswith("got 4 parts")
    assert told["averaged"].startswith("ConfigError: the optimizer has an ema_overwrite_frequency")
    assert sorted(told["history"]) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert told["history"]["val_loss"][-1] == pytest.approx(told["evaluated"]["loss"], rel=1e-5)
    assert told["history"]["val_accuracy"][-1] == pytest.approx(told["evaluated"]["accuracy"])
    assert "the loss is nan" in told["spoilt"]
    assert told["shards"] == ["rows", "chief"]  # which of the two has the rows
    assert told["heard"] == list(range(5)) * 3
    assert [len(each) for each in told["vectors"]] == [2]
    for of in ("", "val_"):
        single = [told["outputs"][f"{of}{name}_loss"][0] for name in ("one", "other")]
        assert sum(single) == pytest.approx(told["outputs"][f"{of}loss"][0], rel=1e-4)
    assert (told["report"]["strategy"], told["report"]["steps"]) == ("parameter_server", 15)


FINISH = """
history = fit(build, epochs=12)
history.report["counted"] = int(history.model.optimizer.iterations.numpy())
(HERE / "told").write_text(json.dumps([history.epoch, history.history, history.report]))
"""


def test_a_killed_worker_costs_its_step_and_comes_back(launcher: Launcher) -> None:
    job = launcher.script(JOB + FINISH)
    for name in ("pause-0-1", "pause-0-3"):
        (launcher.place / name).touch()
    process = launcher.begin(job, "--workers", 2, "--ps", 1, "--restarts", 1)
    pid = launcher.place / "worker-0.pid"
    _await(process, launcher.place / "paused-0-1")
    first = pid.read_text()
    os.kill(int(first), signal.SIGKILL)
    (launcher.place / "go-0-1").touch()  # goes on with the other worker
    _await(process, launcher.place / "paused-0-3")
    until(lambda: pid.read_text() not in ("", first), LIMIT)
    (launcher.place / "go-0-3").touch()
    out = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0, out
    assert "worker 0 failed: it was killed by SIGKILL" in out
    epochs, history, report = json.loads((launcher.place / "told").read_text())
    assert (epochs, report["steps"]) == (list(range(12)), 12 * 5)
    assert report["counted"] == 12 * 5  # by the optimizer, though workers count at the same time
    assert history["loss"][-1] < 0.7 * history["loss"][0]


def test_a_killed_server_or_chief_restarts_all_from_the_checkpoint(launcher: Launcher) -> None:
    job = launcher.script(JOB + FINISH)
    for pause in ("0-3", "1-5"):
        (launcher.place / f"pause-{pause}").touch()
    process = launcher.begin(
        *(job, "--workers", 1, "--ps", 1, "--restarts", 2, "--checkpoints", "kept")
    )
    for pause, victim in (("0-3", "ps-0"), ("1-5", "chief-0")):
        _await(process, launcher.place / f"paused-{pause}")
        os.kill(int((launcher.place / f"{victim}.pid").read_text()), signal.SIGKILL)
    out = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0, out
    assert "ps 0 failed first: it was killed by SIGKILL" in out
    assert "chief failed first: it was killed by SIGKILL" in out
    epochs, history, report = json.loads((launcher.place / "told").read_text())
    assert epochs == list(range(12))
    assert report["resumed_at_step"] == 5 * 5  # the sixth epoch was being told when it died
    assert history["loss"][-1] < 0.7 * history["loss"][0]


@pytest.fixture(scope="module")
def imported() -> Iterator[None]:
    with tensorflow_imported():
        yield


@in_tensorflow
def test_a_server_that_still_answers_for_a_moment_is_named_all_the_same() -> None:
    """A process that ends loses its connections one by one: the one that was lost told of it."""
    import tensorflow as tf

    from penstock.train.servers import _lost_servers

    with socket.create_server(("127.0.0.1", 0)) as stays, ExitStack() as ends:
        going = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        servers = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in (stays, going))
        threading.Timer(0.7, going.close).start()
        with (
            pytest.raises(WorkerLost, match=f"parameter servers lost: {servers[1]};"),
            _lost_servers(Cluster(("127.0.0.1:1",), servers, "127.0.0.1:2", "chief")),
        ):
            raise tf.errors.UnavailableError(None, None, "connection reset")


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_a_launcher_a_lost_server_ends_the_chief(tmp_path: Path, number: int) -> None:
    (tmp_path / "job.py").write_text(PREAMBLE + JOB + "fit(build, epochs=1000, timeout=5)\n")
    (tmp_path / "pause-0-1").touch()
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with ExitStack() as processes:

        def begin(role: str) -> Any:
            cluster = Cluster((addresses[1],), (addresses[2],), addresses[0], role)
            return processes.enter_context(_alone(tmp_path, cluster))

        chief, _, server = (begin(role) for role in ("chief", "worker", "ps"))
        paused = tmp_path / "paused-0-1"
        until(lambda: paused.exists() or chief.exitcode is not None, LIMIT + 40)
        assert paused.exists(), (tmp_path / "output-chief").read_text()
        os.kill(server.pid, number)
        (tmp_path / "go-0-1").touch()
        chief.join(100)
        out = (tmp_path / "output-chief").read_text()
        assert chief.exitcode == 1, out
        if number == signal.SIGKILL:
            assert f"WorkerLost: parameter servers lost: {addresses[2]}" in out
        else:  # where it waits in vain decides who notices
            told = ("steps were not done within 5 s", "did nothing for 5 s", "Timeout (0:00:15)!")
            assert any(text in out for text in told), out


STOPS = """
import signal
class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 1):
            os.kill(int((HERE / "ps-0.pid").read_text()), signal.SIGSTOP)
more = [Stop()] if NAME == "chief" else ()
try:
    fit(build, epochs=1000, timeout=5, more=more)
except penstock.errors.WorkerLost as error:
    if (HERE / "raise").exists():
        raise
    lost = error
    print("caught:", lost)
del lost
import gc
gc.collect()
print("goes on", flush=True)
"""


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("caught", [True, False])
def test_a_chief_whose_server_stops_in_the_middle_of_steps_ends_like_any_other(
    tmp_path: Path, caught: bool
) -> None:
    """What its error holds is freed then, of which TensorFlow would tell the server, and wait."""
    (tmp_path / "job.py").write_text(PREAMBLE + JOB + STOPS)
    if not caught:
        (tmp_path / "raise").touch()
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]

    def cluster(role: str) -> Cluster:
        return Cluster((addresses[1],), (addresses[2],), addresses[0], role)

    environment = {**os.environ, "TF_CONFIG": cluster("chief").tf_config()}
    with _alone(tmp_path, cluster("worker")), _alone(tmp_path, cluster("ps")) as server:
        until(lambda: (tmp_path / "ps-0.pid").exists() or server.exitcode is not None, LIMIT + 40)
        chief = subprocess.run(
            [sys.executable, "job.py"],  # to its end as Python ends, not as a fork does
            cwd=tmp_path,
            env=environment | {"PENSTOCK_TRAIN_ATTEMPT": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
        )
    assert chief.returncode == (0 if caught else 1), chief.stdout
    assert "steps were not done within 5 s" in chief.stdout
    assert ("goes on" in chief.stdout) == caught


@pytest.mark.usefixtures("imported")
def test_whoever_serves_does_not_wait_for_ever_for_a_chief(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PREAMBLE + JOB + "fit(build, timeout=1)\n")
    chief, worker, server = (f"127.0.0.1:{port}" for port in free_ports(3))
    with _alone(tmp_path, Cluster((worker,), (server,), chief, "worker")) as process:
        process.join(LIMIT)
        assert process.exitcode == 1
    told = f"WorkerLost: within 1 s the chief did not answer at {chief}; worker 0"
    assert told in (tmp_path / "output-worker").read_text()


@contextmanager
def _alone(place: Path, cluster: Cluster) -> Iterator[Any]:
    """A task of the cluster, without a launcher; leaving kills it, if it still runs."""
    environment = {"TF_CONFIG": cluster.tf_config(), "PENSTOCK_TRAIN_ATTEMPT": "0"}
    process = script(place / "job.py", place / f"output-{cluster.role}", **environment)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _await(process: subprocess.Popen[str], file: Path) -> None:
    until(lambda: file.exists() or process.poll() is not None, LIMIT + 40)
    assert file.exists(), process.communicate()[0]
