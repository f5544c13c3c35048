"""Training that is killed, stopped, or given what cannot do.

Killed and started again, it ends with the same bits as if nothing had been. What cannot go on ends
with an error that says what was the matter, within a time that is known.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.train.checkpoints import Checkpoints
from tests.faults.training import Run, cluster
from tests.forked import tensorflow_imported

pytestmark = pytest.mark.slow
STEPS = 28  # four epochs of 50 rows by 8
PATIENCE = 6.0  # seconds that a worker waits for another one
BOUND = PATIENCE + 24.0  # until it has ended, on a machine that is busy


@pytest.fixture(scope="module", autouse=True)
def _imported() -> Iterator[None]:
    with tensorflow_imported():
        yield


@pytest.fixture
def moments() -> random.Random:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed)


def company(folder: Path, workers: int, **options: Any) -> list[Run]:
    if workers == 1:
        return [Run(folder / "0", **options)]
    return [
        Run(folder / str(index), config, **options) for index, config in enumerate(cluster(workers))
    ]


@pytest.mark.parametrize(
    ("workers", "dataset"),
    [(1, False), (1, True), (2, False)],
    ids=["one", "one-from-tf-data", "two-workers"],
)
def test_killed_at_random_moments_and_resumed_though_the_newest_checkpoint_is_damaged(
    tmp_path: Path, moments: random.Random, workers: int, dataset: bool
) -> None:
    options: dict[str, Any] = {"dataset": dataset}
    with ExitStack() as stack:
        made = company(tmp_path / "whole", workers, **options)
        whole = [stack.enter_context(run) for run in made]
        (expected,) = {run.weights() for run in whole}
        story = whole[0].ended()["history"]
    options |= {"checkpoints": str(tmp_path / "kept"), "checkpoint_every": 1}
    for _ in range(3 if workers == 1 else 2):
        with ExitStack() as stack:
            made = company(tmp_path / "it", workers, pause=0.05, **options)
            runs = [stack.enter_context(run) for run in made]
            victim = runs[moments.randrange(workers)]
            victim.await_steps(moments.randrange(3, 5))
            time.sleep(moments.uniform(0, 0.1))  # anywhere in a step, or in a save
            victim.send(signal.SIGKILL)
    damaged = Checkpoints(tmp_path / "kept").paths()[-1]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with ExitStack() as stack:
        last = [stack.enter_context(run) for run in company(tmp_path / "it", workers, **options)]
        assert {run.weights() for run in last} == {expected}
        outcome = last[0].ended()
    assert outcome["history"] == story
    assert outcome["steps"] == STEPS
    assert outcome["resumed"] >= 2
    assert damaged.name in (last[0].folder / "log").read_text()


def test_workers_resumed_at_the_very_end_of_an_epoch_go_on(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = {"checkpoints": str(kept), "checkpoint_every": 7}
    with ExitStack() as stack:
        made = company(tmp_path / "it", 2, epochs=1, **options)
        runs = [stack.enter_context(run) for run in made]
        assert len({run.weights() for run in runs}) == 1
    Checkpoints(kept).paths()[-1].unlink()  # the epoch's own; that of its last step is left
    newest = Checkpoints(kept).newest()
    assert newest is not None
    assert (newest.epoch, newest.step_in_epoch) == (0, 7)
    with ExitStack() as stack:
        runs = [stack.enter_context(run) for run in company(tmp_path / "it", 2, **options)]
        assert len({run.weights() for run in runs}) == 1
        assert runs[0].ended()["steps"] == STEPS


@pytest.mark.parametrize(
    ("victim", "number"),
    [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["killed-worker", "killed-chief", "stopped-worker"],
)
def test_a_lost_peer_ends_the_others_in_a_bounded_time(
    tmp_path: Path, victim: int, number: signal.Signals
) -> None:
    kept = tmp_path / "kept"
    with ExitStack() as stack:
        options = {"epochs": 1000, "checkpoints": str(kept), "checkpoint_every": 3}
        runs = [
            stack.enter_context(
                Run(tmp_path / str(index), config, timeout=PATIENCE, pause=0.01, **options)
            )
            for index, config in enumerate(cluster(2))
        ]
        runs[0].await_steps(4)
        runs[victim].send(number)
        outcome = runs[1 - victim].ended(BOUND)
    assert outcome["error"] == "WorkerLost"
    assert f"worker {1 - victim} of 2" in outcome["message"]
    newest = Checkpoints(kept).newest()
    assert newest is not None
    assert newest.step >= 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "TF_CONFIG"),
        ({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}, "task"),
        (
            {
                "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
                "task": {"type": "worker", "index": 2},
            },
            "index",
        ),
    ],
    ids=["no-json", "no-task", "no-such-worker"],
)
def test_a_bad_tf_config_is_refused_at_once(tmp_path: Path, config: object, message: str) -> None:
    with Run(tmp_path, config) as run:
        outcome = run.ended()
    assert outcome["error"] == "ConfigError"
    assert "TF_CONFIG" in outcome["message"]
    assert message in outcome["message"]
    assert run.steps() == 0


def test_a_loss_that_is_not_a_number_ends_training_and_spoils_no_checkpoint(
    tmp_path: Path,
) -> None:
    options = {"checkpoints": str(tmp_path / "kept"), "checkpoint_every": 1, "batch_size": 2}
    with Run(tmp_path / "one", poison=True, **options) as run:
        outcome = run.ended()
    assert outcome["error"] == "TrainingError"
    assert "the loss is nan" in outcome["message"]
    newest = Checkpoints(tmp_path / "kept").newest()
    if newest is not None:  # unless it was among the very first rows
        assert all(np.isfinite(array).all() for array in newest.arrays.values())


@pytest.mark.parametrize("workers", [1, 2])
def test_fewer_rows_than_a_global_batch_make_one_short_step(tmp_path: Path, workers: int) -> None:
    with ExitStack() as stack:
        made = company(tmp_path, workers, rows=3, batch_size=64, epochs=1)
        runs = [stack.enter_context(run) for run in made]
        assert len({run.weights() for run in runs}) == 1
        assert {run.ended()["steps"] for run in runs} == {1}
