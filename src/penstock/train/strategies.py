"""Which replicas train together, and how their gradients are added up.

`place` resolves a name, or takes a `tf.distribute.Strategy` as it is. "auto" follows the
environment: a cluster of several workers (`cluster`), else several GPUs of this process, else one
device. `all_reduce` options:

| reduce | one process | several |
|---|---|---|
| auto | NCCL on GPUs, else TensorFlow's choice | NCCL on GPUs of their own, else ring |
| nccl | `NcclAllReduce` | NCCL |
| ring | not to be had | ring, over gRPC |
| hierarchical | `HierarchicalCopyAllReduce` | not to be had |

TensorFlow wants to be told of its peers before anything else. `prepare` does that, and
a script may call it first. Where it has not, and has already made a model, `place` tells it late:
that works, but variables and tensors from before are lost to the process (`carry` saves the model).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import time
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError, WorkerLost
from penstock.model.runtime import tf
from penstock.train import cluster as clusters
from penstock.train.cluster import Cluster
from penstock.train.launcher.ports import check_free
from penstock.train.options import TIMEOUT, waited


@dataclass(frozen=True)
class Place:
    """Where training happens: a strategy, and which of its workers this process is."""

    strategy: Any
    kind: str  # one, mirrored, multiworker
    worker: int = 0
    workers: int = 1
    local: int = 1  # replicas of this worker
    reduction: str = "none"
    options: Any = None  # of the all-reduce
    cluster: Cluster | None = None
    ahead: str | None = None  # the device to which one replica's data is copied ahead

    @property
    def replicas(self) -> int:
        """Replicas of all workers."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def is_chief(self) -> bool:
        """Whether this process tells the user, and writes."""
        return self.worker == 0

    @property
    def home(self) -> Any:
        """The strategy that models must be made for; `None`: for none."""
        return None if self.kind == "one" else self.strategy

    def scope(self) -> Any:
        """Where a model's variables are to be made."""
        return contextlib.nullcontext() if self.kind == "one" else self.strategy.scope()

    @property
    def on_gpu(self) -> bool:
        """Whether its replicas are GPUs."""
        if self.kind == "one":
            return bool(tf.config.list_logical_devices("GPU"))
        return any("GPU" in device for device in self.strategy.extended.worker_devices)


def place(
    strategy: Any = "auto", reduce: str = "auto", pack_bytes: int = 0, timeout: float = TIMEOUT
) -> Place:
    """The place for a name or a strategy."""
    found = clusters.found() if isinstance(strategy, str) else None
    if strategy == "auto":
        strategy = _by_circumstance(found)
    if strategy == "one":
        if tf.distribute.has_strategy():
            raise ConfigError('strategy="one" was asked for in the scope of a strategy')
        return Place(tf.distribute.get_strategy(), "one", ahead=_ahead())
    if strategy == "multiworker":
        return _multiworker(found, reduce, pack_bytes, timeout)
    if strategy == "parameter_server":
        raise ConfigError("a parameter server cluster is trained by its coordinator (servers)")
    if strategy == "mirrored":
        strategy = _mirrored(tuple(_local_devices()), reduce)
    return _of_a_strategy(strategy, reduce, pack_bytes, timeout)


def resolved(strategy: Any) -> str:
    """What kind of place that will be, without making it."""
    if strategy == "auto":
        strategy = _by_circumstance(clusters.found())
    return strategy if isinstance(strategy, str) else "mirrored"


def prepare(reduce: str = "auto", pack_bytes: int = 32 << 20, timeout: float | None = None) -> None:
    """Join the cluster that the environment names, if any, before the script makes anything.

    For scripts that are not started by `penstock train`, make tensors or data sets before they
    call `fit`, and run on several workers.
    """
    found = clusters.found()
    if found is not None and found.kind == "multiworker":
        _multiworker(found, reduce, pack_bytes, waited() if timeout is None else timeout)


def has_joined() -> bool:
    """Whether this process has joined a cluster."""
    return bool(_joined)


def _by_circumstance(found: Cluster | None) -> Any:
    if tf.distribute.has_strategy():
        return tf.distribute.get_strategy()  # of the scope that `fit` is called in
    if found is not None and found.kind != "single":
        return found.kind
    return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one"


def _local_devices() -> list[str]:
    kinds = ("GPU", "CPU")
    found = next(filter(None, (tf.config.list_logical_devices(kind) for kind in kinds)))
    return [device.name for device in found]


def _ahead() -> str | None:
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else None


@functools.cache  # what was trained in it may stay there in the next run
def _mirrored(devices: tuple[str, ...], reduce: str) -> Any:
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=_within_a_process(reduce))


def _within_a_process(reduce: str) -> Any:
    gpus = len(tf.config.list_logical_devices("GPU"))
    if reduce == "ring":
        raise ConfigError(
            'reduce="ring" is for several workers; one process has "nccl" and "hierarchical"'
        )
    if reduce == "nccl" and not gpus:
        raise ConfigError('reduce="nccl" needs GPUs, and TensorFlow sees none')
    if reduce == "hierarchical":
        return tf.distribute.HierarchicalCopyAllReduce()
    return tf.distribute.NcclAllReduce() if reduce == "nccl" or gpus > 1 else None


def _of_a_strategy(strategy: Any, reduce: str, pack_bytes: int, timeout: float) -> Place:
    kinds = {
        tf.distribute.MultiWorkerMirroredStrategy: "multiworker",
        tf.distribute.MirroredStrategy: "mirrored",
        tf.distribute.OneDeviceStrategy: "mirrored",
    }
    kind = next((kind for type_, kind in kinds.items() if isinstance(strategy, type_)), None)
    if kind is None:
        raise ConfigError(
            "strategy must be a name, or a MirroredStrategy, MultiWorkerMirroredStrategy or "
            f"OneDeviceStrategy; got {type(strategy).__name__}"
        )
    extended = strategy.extended
    # Every step has an element for each replica: nothing is to be agreed upon before it is read.
    extended.experimental_enable_get_next_as_optional = False
    if kind == "mirrored":
        _apart(extended)
    local = len(extended.worker_devices)
    workers = strategy.num_replicas_in_sync // local
    resolver = strategy.cluster_resolver if kind == "multiworker" else None
    worker = 0
    if resolver is not None and workers > 1:
        has_chief = "chief" in resolver.cluster_spec().as_dict()
        is_chief = resolver.task_type == "chief"
        worker = 0 if is_chief else int(resolver.task_id) + has_chief
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=pack_bytes,
        timeout_seconds=timeout if workers > 1 else None,
        implementation=_between_processes(reduce) if kind == "multiworker" else "AUTO",
    )
    named = reduce if reduce != "auto" else _reduction_of(strategy, kind)
    return Place(strategy, kind, worker, workers, local, named, options)


_GROUPS = itertools.count(1 << 20, 1 << 10)  # TensorFlow counts from 0, for each strategy alike


def _apart(extended: Any) -> None:
    """A group of its own for a strategy's all-reduces.

    Of two over the same devices the second would trip over the first one's.
    """
    if getattr(extended, "_collective_key_base", None) == 0:
        before = extended._collective_ops
        extended._collective_key_base = next(_GROUPS)
        extended._collective_ops = extended._make_collective_ops_with_fallbacks()
        if extended._cross_device_ops is before:
            extended._cross_device_ops = extended._collective_ops


def _reduction_of(strategy: Any, kind: str) -> str:
    gpus = any("GPU" in device for device in strategy.extended.worker_devices)
    if kind == "multiworker":
        return "nccl" if gpus and not _crowded() else "ring"
    return "nccl" if gpus and strategy.num_replicas_in_sync > 1 else "auto"


def _between_processes(reduce: str) -> Any:
    if reduce == "hierarchical":
        raise ConfigError(
            'reduce="hierarchical" is for one process; several workers have "nccl" and "ring"'
        )
    names = tf.distribute.experimental.CommunicationImplementation
    if reduce == "auto" and _crowded():
        return names.RING
    return {"auto": names.AUTO, "nccl": names.NCCL, "ring": names.RING}[reduce]


def _crowded() -> bool:
    """Whether workers share a card, as the launcher says: NCCL refuses that."""
    return os.environ.get("PENSTOCK_TRAIN_CROWDED") == "1"


_PAUSE = 0.2  # seconds between two looks whether others have come
_joined: list[Any] = []  # a process joins one cluster, once


def _multiworker(found: Cluster | None, reduce: str, pack_bytes: int, timeout: float) -> Place:
    if found is None or found.kind != "multiworker":
        raise ConfigError(
            'strategy="multiworker" needs a cluster of several workers: start the script with '
            "`penstock train`, or set TF_CONFIG; "
            + ("there is none" if found is None else f"{found.source} names a {found.kind} one")
        )
    if not _joined:
        _joined.append(_join(found, reduce, pack_bytes, timeout))
    return _of_a_strategy(_joined[0], reduce, pack_bytes, timeout)


def _join(found: Cluster, reduce: str, pack_bytes: int, timeout: float) -> Any:
    os.environ[clusters.VARIABLE] = found.tf_config()  # for TensorFlow to read, whoever told us
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=pack_bytes,
        timeout_seconds=timeout,
        implementation=_between_processes(reduce),
    )
    _check_free(found)
    late = _allow_late(found)
    began = time.monotonic()
    log = logging.getLogger("absl")
    level = log.level
    try:
        if late:  # what it warns of is taken care of
            log.setLevel(logging.ERROR)
        _limit_joining(found, timeout)
        await_others(found, timeout)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        raise _alone(found, time.monotonic() - began, [found.chief or found.workers[0]]) from error
    finally:
        log.setLevel(level)


def _check_free(found: Cluster) -> None:
    """Unless this process itself listens there: the script may have made a strategy of its own."""
    from tensorflow.python.eager import context

    of_process = context.context()
    names = ("_server_def", "_collective_ops_server_def")
    if all(getattr(of_process, name, None) is None for name in names):
        check_free(found.address)


def await_others(found: Cluster, timeout: float) -> None:
    """The chief's part: the others listen while they call it, but it would wait for ever."""
    from penstock.train.servers import silent

    began = time.monotonic()
    missing = [each for each in found.workers if found.is_chief and each != found.address]
    while missing := silent(missing):
        if time.monotonic() - began > timeout:
            raise _alone(found, timeout, missing)
        time.sleep(_PAUSE)


def _alone(found: Cluster, seconds: float, missing: list[str]) -> WorkerLost:
    return WorkerLost(
        f"worker {found.rank} of {found.size} has waited {seconds:.0f} s in vain for the others to "
        f"come: nobody answers at {', '.join(missing)}"
    )


def _limit_joining(found: Cluster, timeout: float) -> None:
    """How long TensorFlow waits for workers that have not come: an hour, if nobody says so.

    But for that, what is set here is what it would set.
    """
    from tensorflow.python.distribute.collective_all_reduce_strategy import coordination_config_pb2
    from tensorflow.python.eager import context

    of_process = context.context()
    if of_process.coordination_service is not None:
        return
    every = {role: tasks for role, tasks in found.tasks().items() if role != "ps" and tasks}
    of_process.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{'chief' if found.chief else 'worker'}/replica:0/task:0",
        cluster_register_timeout_in_ms=math.ceil(1000 * timeout),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=role, num_tasks=len(tasks))
            for role, tasks in every.items()
        ],
    )


def _allow_late(found: Cluster) -> bool:
    """Let TensorFlow be told of its peers although it has computed something already.

    It refuses that, for tensors from before are lost. What is set here is what it would set.
    """
    from tensorflow.python.eager import context

    of_process = context.context()
    if not getattr(of_process, "_context_handle", None):
        return False
    leader = "chief" if found.chief else "worker"
    of_process._collective_leader = f"/job:{leader}/replica:0/task:0"
    of_process._collective_scoped_allocator_enabled_ops = ("CollectiveReduce",)
    of_process._collective_use_nccl_communication = False
    of_process._collective_device_filters = (f"/job:{found.role}/task:{found.index}",)
    return True
