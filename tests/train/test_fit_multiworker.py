"""Two or three workers, real processes: all end with the weights of one device."""

from __future__ import annotations

import functools
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.train.cluster import Cluster
from penstock.train.launcher.ports import free_ports
from tests.forked import FORKED, tensorflow_imported
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import network, process_of_two_cpus, rows, two_cpus
from tests.train.worker_job import FILES, RUNS

pytestmark = pytest.mark.slow
_LIMIT = 110


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus(), tensorflow_imported():
        yield


def trained(folder: Path, job: str, workers: int) -> list[str]:
    """So many workers do a job; returns what each has written to its standard output."""
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(workers))
    configs = [Cluster(addresses, index=index).tf_config() for index in range(workers)]
    processes = [
        FORKED.Process(target=_work, args=(job, folder, index, config))
        for index, config in enumerate(configs)
    ]
    until = time.monotonic() + _LIMIT
    try:
        for process in processes:
            process.start()
        for index, process in enumerate(processes):
            process.join(max(0.0, until - time.monotonic()))
            assert process.exitcode == 0, (folder / f"errors-{index}").read_text()[-3000:]
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    return [(folder / f"output-{index}").read_text() for index in range(workers)]


def _work(job: str, folder: Path, index: int, config: str) -> None:
    """What a worker's process does."""
    for descriptor, name in ((1, "output"), (2, "errors")):
        file = os.open(folder / f"{name}-{index}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    os.environ["TF_CONFIG"] = config
    importlib.import_module(f"tests.train.{job}").main(folder)


@in_tensorflow
def reference(by: str) -> Any:
    two_cpus()
    x, y = rows()
    model = network(by)
    history = model.fit(
        x,
        y,
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x[:11], y[:11]),
    )
    return model.get_weights(), history.history


@functools.cache
def of_one_device(by: str) -> Any:
    """The weights and the history of `Model.fit`: once for each optimizer."""
    return reference(by=by)


@in_tensorflow
def mixed(folder: str) -> Any:
    """One device, with the same seed."""
    import penstock

    two_cpus()
    x, y = rows()
    settings = {"batch_size": 8, "epochs": 2, "verbose": 0, "seed": 5, "strategy": "one"}
    history = penstock.train.fit(
        network("sgd"), f"{folder}/{FILES}", "y", validation_data=(x[:11], y[:11]), **settings
    )
    return history.model.get_weights(), history.history


def write_files(folder: Path) -> None:
    """Two files of the rows, in small groups."""
    import pyarrow
    import pyarrow.parquet

    x, y = rows()
    for name, some in (("rows-0", slice(0, 20)), ("rows-1", slice(20, None))):
        table = pyarrow.table({"x": list(x[some]), "y": y[some]})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=6)


def arrays(path: Path) -> list[Any]:
    with np.load(path) as kept:
        return [kept[name] for name in kept.files]


def furthest(one: list[Any], two: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True))


@pytest.mark.timeout(120)
def test_three_workers_have_the_weights_of_one_device(tmp_path: Path) -> None:
    """With each optimizer, and of files that each reads a part of: one after another, in the same
    processes."""
    write_files(tmp_path)
    shown = trained(tmp_path, "worker_job", 3)
    for by, options in RUNS.items():
        weights, history = of_one_device(by.partition(" ")[0])
        if "mixed" in by:
            in_order = weights
            weights, history = mixed(folder=str(tmp_path))
            assert furthest(weights, in_order) > 1e-3
        first, *others = (arrays(tmp_path / f"{by}-{rank}.npz") for rank in range(3))
        assert max(furthest(first, other) for other in others) == 0, by
        half = "precision" in options
        limit, rtol = (5e-3, 1e-2) if half else (2e-6, 2e-5)
        assert furthest(first, weights) < limit, by
        for rank in range(3):
            assert furthest(arrays(tmp_path / f"{by}-{rank}-own.npz"), weights) < limit, by
            told = json.loads((tmp_path / f"{by}-{rank}.json").read_text())
            assert set(told["history"]) == set(history)
            for name, values in history.items():
                np.testing.assert_allclose(told["history"][name], values, rtol=rtol, err_msg=name)
            report = told["report"]
            assert (report["strategy"], report["worker"]) == ("multiworker", rank)
            assert report["workers"] == report["replicas"] == 3
            from_dataset = by == "adamw" or "unknown" in by
            assert report["shard"] == ("data" if from_dataset else "rows")
            # At the end of an epoch of unknown length all take a step without a row.
            assert report["loss_scale"] == (2.0**15 if half else None), "as it began"
            assert report["micros"] == options.get("accumulate", 1)
            assert report["steps"] == 10
    assert shown[0].count("Epoch 2/2") == len(RUNS)
    assert shown[1:] == ["", ""]


@pytest.mark.timeout(120)
def test_workers_that_are_not_given_the_same_are_told_and_the_chief_ends_an_epoch(
    tmp_path: Path,
) -> None:
    trained(tmp_path, "differing_job", 2)
    weights, history = of_one_device("adam")
    every = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, told in enumerate(every):
        assert told["epochs"] == [0, 1]  # as the chief has it
        assert told["steps"] == 10
        assert told["inside"] == [[0], 4]  # all at once, where the chief was asked next
        got = [np.asarray(each, "float32") for each in told["weights"]]
        assert furthest(got, weights) < 2e-6
        assert told["loss"] < history["loss"][-1]
        assert "-2 is of a worker that was given none" in told["folder"]
        assert f"the chief has -1, worker {rank} has {-1 - rank}" in told["folder"]
        assert told["micros"] == 4  # as one that ran out of memory has left word
        assert len(told["looked"]) == (0 if rank else 5)
        first, second = told["validation"]
        assert told["validated"] == pytest.approx((20 * first + 9 * second) / 29, rel=1e-5)
        if rank == 0:
            assert told["looked"][-1] == pytest.approx(first, rel=1e-5)  # of its own rows
        assert f"worker {rank} has steps an epoch {(5, 3)[rank]}, shard rows" in told["rows"]
        assert 'say shard="off"' in told["rows"]
        for name in ("seeds", "validation seeds"):
            assert "shuffled with the same seed on every worker" in told[name]


@pytest.mark.timeout(120)
def test_a_worker_that_runs_out_of_memory_takes_its_rows_in_parts_and_all_go_on(
    tmp_path: Path,
) -> None:
    trained(tmp_path, "shortage_job", 2)
    weights, history = of_one_device("adam")
    chief, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for name, micros in (
        ("at once", [2]),
        ("twice in a step", [2, 4]),
        ("in a second micro-batch", [4]),
    ):
        for told in (chief[name], other[name]):
            got = [np.asarray(each, "float32") for each in told["weights"]]
            assert furthest(got[: len(weights)], weights) < 2e-6, name
            for metric in ("loss", "accuracy"):
                np.testing.assert_allclose(told[metric], history[metric], rtol=2e-5)
        assert other[name]["out_of_memory"] == [{"micros": each} for each in micros]
        assert other[name]["micros"] == micros[-1]
        assert chief[name]["out_of_memory"] is None
    every = "weights", "loss", "accuracy"
    name = "in a second part"
    assert [chief[name][each] for each in every] == [other[name][each] for each in every]
    assert other[name]["micros"] == 4
    # A piece that waits for the others in its middle, and what all do together, is not repeated.
    assert [(each["lonely"], each["synchronized"]) for each in (chief, other)] == [
        (False, True)
    ] * 2
    assert "WorkerLost: worker 0 of 2 has lost another one" in chief["together"]
    assert "worker 1 of 2 ran out of memory in a step of 1 micro-batches" in other["together"]
