"""`penstock train` with a script that knows nothing of clusters: two workers, one training."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import pytest

from penstock.train.launcher.ports import free_ports
from tests.train.launching import Launcher

pytestmark = pytest.mark.timeout(120)

# A data set and a model from before `fit`, after settings that must come first.
JOB = """
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, tensorflow as tf
import penstock.train
tf.config.threading.set_intra_op_parallelism_threads(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(40, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = penstock.train.fit(model, data, batch_size=16, epochs=2, verbose=0)
told = [history.history, [w.tolist() for w in model.get_weights()], len(list(data))]
(HERE / f"told-{INDEX}").write_text(json.dumps(told))
"""


def test_a_script_trains_on_two_workers_unchanged(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    job = launcher.script(JOB)
    done = launcher.run(job, "--workers", 2, "--json")
    launcher.close()
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"told-{index}").read_text()) for index in (0, 1))
    assert first == second
    assert first[0]["loss"][1] < first[0]["loss"][0]
    training = json.loads(done.stdout)["training"]
    assert (training["strategy"], training["workers"], training["steps"]) == ("multiworker", 2, 6)


def test_an_error_in_the_script_is_told_as_python_tells_it(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    job = launcher.script("def load():\n    raise OSError('no such disk')\nload()\n")
    done = launcher.run(job)
    launcher.close()
    summary = done.stdout[done.stdout.index("failed first") :].splitlines()
    assert summary[0] == "failed first: OSError: no such disk"
    frames = [line.strip() for line in summary if line.strip().startswith("File")]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["<module>", "load"]


# The second worker ends in the middle of the first attempt, in the way that the argument says.
RESTARTED = """
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np
import penstock.train
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")

def build():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    return model

class Fate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if (INDEX, ATTEMPT, epoch, sys.argv[1]) == (1, 0, 2, "kill"):
            os.kill(os.getpid(), signal.SIGKILL)

history = penstock.train.fit(
    build, x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=5, callbacks=[Fate()],
    verbose=0, seed=1, deterministic=True,
)
told = [history.history, [w.tolist() for w in history.model.get_weights()]]
(HERE / f"{sys.argv[1]}-{INDEX}").write_text(json.dumps(told))
"""


def test_a_killed_worker_changes_nothing_about_the_weights(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    job = launcher.script(RESTARTED)
    whole = launcher.run(job, "--workers", 2, "--", "whole")
    assert whole.returncode == 0, whole.stdout
    (tmp_path / "temporary").mkdir()
    killed = launcher.run(
        *(job, "--workers", 2, "--restarts", 1, "--checkpoints", "kept", "--", "kill"),
        TMPDIR=str(tmp_path / "temporary"),
    )
    launcher.close()
    assert killed.returncode == 0, killed.stdout
    assert list((tmp_path / "temporary").iterdir()) == []  # AutoGraph makes files there
    assert "worker 1 failed first: it was killed by SIGKILL" in killed.stdout
    assert (tmp_path / "kill-0").read_text() == (tmp_path / "whole-1").read_text()


def test_how_long_workers_wait_for_each_other_is_said_to_the_command(tmp_path: Path) -> None:
    """They meet before the script comes to `fit`, which may say it for itself."""
    launcher = Launcher(tmp_path)
    job = launcher.script(
        'os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"\n'
        "if INDEX == 1:\n    for_ever()\n"
        "import tensorflow as tf\ntf.constant(1)\n"
    )
    done = launcher.run(job, "--workers", 2, "--timeout", 2)
    launcher.close()
    assert done.returncode == 1
    assert "worker 0 of 2 has waited 2 s in vain for the others to come" in done.stdout


@pytest.mark.parametrize(
    ("servers", "at", "who"), [(0, 2, "worker 1"), (1, 1, "chief"), (1, 2, "ps 0")]
)
def test_a_port_that_is_taken_is_named(tmp_path: Path, servers: int, at: int, who: str) -> None:
    """Of a job whose addresses are given: TensorFlow would name neither port nor address."""
    launcher = Launcher(tmp_path)
    job = launcher.script(JOB)
    ports = row_of_ports(4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[at]))
        taken.listen()
        nodes = f"127.0.0.1:{ports[0]}"
        done = launcher.run(job, "--workers", 2 - servers, "--ps", servers, "--nodes", nodes)
    launcher.close()
    assert done.returncode == 1
    failed = next(line for line in done.stdout.splitlines() if "failed first" in line)
    assert f"{who} failed first: penstock.errors.TrainingError: " in failed
    assert f"127.0.0.1:{ports[at]}, and cannot: Address already in use" in failed


def row_of_ports(count: int) -> list[int]:
    """Free ones, one after the other."""
    for first in free_ports(20):
        row = [*range(first, first + count)]
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in row:
                held.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return row
    raise AssertionError("no row of free ports")
