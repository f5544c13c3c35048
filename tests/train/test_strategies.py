"""The all-reduce that is asked for is the one that is used; NCCL as far as its configuration goes,
for that needs several GPUs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import ConfigError, TrainingError, WorkerLost
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus

_PACK = 1 << 10


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


@in_tensorflow
def test_copies_by_hierarchy_over_two_cpus_teach_what_one_device_learns() -> None:
    import tensorflow as tf

    import penstock
    from penstock.train import reducing, step
    from penstock.train.strategies import place

    two_cpus()
    settings: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    wanted = network("sgd")
    wanted.fit(*rows(), **settings)
    used = []

    def summed(values: Any, options: Any) -> Any:
        used.append(options.bytes_per_pack)
        return reducing.summed(values, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "summed", summed)
        got = penstock.train.fit(
            network("sgd"),
            *rows(),
            strategy="mirrored",
            reduce="hierarchical",
            pack_bytes=_PACK,
            **settings,
        )
    assert set(used) == {_PACK}
    assert (got.report["reduce"], got.report["replicas"]) == ("hierarchical", 2)
    assert furthest(got.model, wanted) < 2e-6
    made = place("mirrored", "hierarchical").strategy.extended
    assert isinstance(made._cross_device_ops, tf.distribute.HierarchicalCopyAllReduce)


@in_tensorflow
def test_several_workers_add_up_as_they_are_told() -> None:
    import tensorflow as tf

    from penstock.train.strategies import place

    two_cpus()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # of one worker: nobody else is needed
    ways = tf.distribute.experimental.CommunicationImplementation
    for reduce, way in (("nccl", ways.NCCL), ("ring", ways.RING), ("auto", ways.AUTO)):
        options = place(strategy, reduce, _PACK).options
        assert (options.implementation, options.bytes_per_pack) == (way, _PACK)
    with pytest.raises(ConfigError, match="for one process"):
        place(strategy, "hierarchical", _PACK)


@in_tensorflow
def test_workers_agree_often_without_a_warning_of_tensorflows() -> None:
    """As it gives of functions that are traced again and again."""
    import dataclasses

    from penstock.train.agreement import agreed, largest
    from penstock.train.strategies import place

    two_cpus()
    where = dataclasses.replace(place("mirrored"), workers=2)
    with no_retracing_told():
        assert [agreed(where, number) for number in range(8)] == list(range(8))
        assert [largest(where, number) for number in range(8)] == list(range(8))


@in_tensorflow
def test_many_short_fits_draw_no_warning_of_tensorflows() -> None:
    """Each has functions of its own, which it traces once."""
    import penstock

    two_cpus()
    data = rows(8)
    with no_retracing_told():
        for _ in range(6):
            penstock.train.fit(
                *(network(), *data),
                strategy="mirrored",
                validation_data=data,
                verbose=0,
            )


@contextlib.contextmanager
def no_retracing_told() -> Iterator[None]:
    told: list[logging.LogRecord] = []
    listening = logging.Handler()
    listening.emit = told.append  # type: ignore[method-assign]
    log = logging.getLogger("tensorflow")
    log.addHandler(listening)
    try:
        yield
    finally:
        log.removeHandler(listening)
    assert not [record.getMessage() for record in told if "retracing" in record.getMessage()]


@in_tensorflow
def test_gradients_are_not_added_up_twice_by_an_optimizer_that_is_not_known() -> None:
    from penstock.train.weighing import plainly

    class Renamed:
        """An optimizer of a Keras whose private method has another name."""

    with plainly(1, Renamed()):
        pass  # one replica adds nothing up
    with pytest.raises(TrainingError, match=r"_all_reduce_sum_gradients.*Renamed.*twice"):
        plainly(2, Renamed()).__enter__()


@in_tensorflow
def test_workers_that_never_come_are_waited_for_as_long_as_was_said() -> None:
    """One worker listens, as a peer that calls its chief does; another one does not come."""
    import socket

    from tensorflow.python.eager import context

    from penstock.train.cluster import Cluster
    from penstock.train.strategies import _limit_joining, await_others

    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("", 0)) as closed:
        ports = [there.getsockname()[1], closed.getsockname()[1]]
        closed.close()
        workers = ("127.0.0.1:1", *(f"127.0.0.1:{port}" for port in ports))
        with pytest.raises(WorkerLost, match=rf"worker 0 of 3 has waited .*at {workers[2]}$"):
            await_others(Cluster(workers), timeout=0.1)
        await_others(Cluster(workers[:2]), timeout=0.1)
        await_others(Cluster(workers, index=1), timeout=0.1)  # which TensorFlow bounds
    set_: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            context.Context, "configure_coordination_service", lambda _, **given: set_.update(given)
        )
        _limit_joining(Cluster(workers, index=1), timeout=2.5)
    assert set_["cluster_register_timeout_in_ms"] == 2500
    assert set_["service_leader"] == "/job:worker/replica:0/task:0"
    assert [(job.name, job.num_tasks) for job in set_["coordinated_jobs"]] == [("worker", 3)]
