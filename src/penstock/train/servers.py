"""Parameter servers: the weights live on servers, workers change them each in its own time.

All tasks run the same script. In `fit` the chief becomes the coordinator (`coordinating`); workers
and servers serve it (`serve`) and never come back: they end with the chief. What a worker was given
to train on, it reads itself, where that can be (`reading`, `sharing`).

    chief ────────steps─────────────▶ worker ──reads weights, sends gradients──▶ server
      ▲ └─────────── again, to another worker, if the first one dies ──┘            │
      └──────────── reads metrics, and weights for checkpoints ─────────────────────┘

What is lost with a worker is its step, which another one takes. What is lost with a server are
weights: the chief ends with `WorkerLost`, and `penstock train --restarts` starts all again from the
newest checkpoint. A server, or all workers, that neither answer nor die are given up after
`timeout` seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from penstock.errors import ConfigError, InputError, WorkerLost
from penstock.model.runtime import keras, tf
from penstock.train import cluster as clusters
from penstock.train.cluster import Cluster
from penstock.train.history import History
from penstock.train.launcher.ports import check_free
from penstock.train.leaving import never_freed
from penstock.train.nodes import check_address
from penstock.train.options import Options
from penstock.train.patience import Patience
from penstock.train.reading import Reader

_PAUSE = 0.5
_GONE = 30.0  # seconds without the chief after which those who serve it end
_FALLS = 3.0  # seconds that a process takes to end, once it has lost a connection
_PATIENT = ("GRPC_FAIL_FAST", "use_caller")  # a lost task is waited for, or told
_joined: list[Any] = []  # a process connects to one cluster, once
_listening: list[tuple[Any, Reader]] = []  # and is one server in it
_calls = itertools.count()  # of `run`


def run(
    model: Any, data: tuple[Any, Any, Any], validation_data: Any, callbacks: Any, options: Options
) -> History:
    """`fit` in a cluster with parameter servers."""
    from penstock.train.carry import built, give_back, is_whole, pack, unpack
    from penstock.train.coordinating import Coordinated
    from penstock.train.precision import training_in
    from penstock.train.running import own_errors

    found = clusters.found()
    if found is None or found.kind != "parameter_server":
        told = "there is none" if found is None else f"{found.source} names a {found.kind} one"
        raise ConfigError(
            'strategy="parameter_server" needs a cluster with parameter servers: start the script '
            f"with `penstock train --ps 1 --workers 2`, or set TF_CONFIG; {told}"
        )
    if found.role == "worker":
        listen(found).give(data, None if validation_data is None else three(validation_data))
    first = next(_calls) == 0
    own = model if isinstance(model, keras().Model) else None
    packed = pack(own) if own is not None and found.role == "chief" else None
    late = not _joined  # what TensorFlow has made until now is lost
    coordinator = joined(found, options.timeout)
    every = [*found.servers, *found.workers]
    with (
        never_freed() as kept,
        own_errors(),
        _lost_servers(found),
        Patience(options.timeout, lambda: silent(every)) as patience,
    ):
        with coordinator.strategy.scope():
            there = unpack(packed) if packed is not None else built(model)
        kept += (coordinator, there)
        _check(there, options, coordinator.strategy, validation_data is not None, found.size)
        with training_in(there, options.precision):
            run = Coordinated(there, coordinator, found, options, patience, first)
            kept.append(run)
            history = run.trained(data, validation_data, callbacks)
        # What the caller gets lives here, and outlives the servers.
        here = unpack(packed) if packed is not None else built(model)
        if not is_whole(here):
            run.build(here)
        give_back(there, here, lost=False)
        if own is not None:
            give_back(there, own, lost=late)
    history.model = here
    return history


def joined(found: Cluster, timeout: float) -> Any:
    """Take this task's place in the cluster. On the chief: the coordinator. Elsewhere: for good."""
    os.environ.setdefault(*_PATIENT)
    if found.role != "chief":
        serve(found, timeout)
    if not _joined:
        check_free(found.address)
        _await(found, timeout)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(found.tasks()), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        _joined.append(tf.distribute.coordinator.ClusterCoordinator(strategy))
    return _joined[0]


def listen(found: Cluster) -> Reader:
    """Be there for the chief, as a worker or a parameter server, while the script goes on."""
    if _listening:
        return _listening[0][1]
    os.environ.setdefault(*_PATIENT)
    check_free(found.address)
    config = tf.compat.v1.ConfigProto()
    # Each worker may hold a thread of every other task while it waits for it.
    config.inter_op_parallelism_threads = max(os.cpu_count() or 1, found.size + 1)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(found.tasks()),
        job_name=found.role,
        task_index=found.index,
        protocol="grpc",
        config=config,
        start=True,
    )
    reader = Reader(found.index)
    if found.role == "worker":
        reader.attach()
    _listening.append((server, reader))
    return reader


def is_listening() -> bool:
    """Whether the chief may count on this process."""
    return bool(_listening)


def serve(found: Cluster, timeout: float) -> NoReturn:
    """Be a worker or a parameter server, until the chief is gone. Raises if it never comes."""
    listen(found)
    assert found.chief is not None
    seen = False
    since = time.monotonic()
    while True:
        now = time.monotonic()
        if answers(found.chief):
            seen, since = True, now
        elif seen and now - since > _GONE:
            raise SystemExit(0)
        elif not seen and now - since > timeout:
            raise WorkerLost(
                f"within {timeout:g} s the chief did not answer at {found.chief}; "
                f"{found.role} {found.index} waited for it in vain"
            )
        time.sleep(_PAUSE)


def three(data: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of what has one, two or three of them."""
    parts = data if isinstance(data, (tuple, list)) else (data,)
    if len(parts) > 3:
        raise InputError(
            f"expected validation_data of (x, y) or (x, y, sample_weight); got {len(parts)} parts"
        )
    x, y, weight = (*parts, None, None)[:3]
    return x, y, weight


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection(check_address(address), 2.0):
        return True
    return False


def silent(addresses: Iterable[str]) -> list[str]:
    """Where nobody listens."""
    return [address for address in addresses if not answers(address)]


def _fallen_silent(addresses: Sequence[str]) -> list[str]:
    """The same; a process that ends loses its connections one by one, the last a little later."""
    until = time.monotonic() + _FALLS
    while not (gone := silent(addresses)) and time.monotonic() < until:
        time.sleep(_PAUSE)
    return gone


def _await(found: Cluster, timeout: float) -> None:
    """TensorFlow would wait for ever for a task that never comes."""
    until = time.monotonic() + timeout
    missing = silent([*found.servers, *found.workers])
    while missing:
        if time.monotonic() > until:
            raise WorkerLost(
                f"within {timeout:g} s nobody answered at {', '.join(missing)}; "
                f"expected {len(found.workers)} workers and {len(found.servers)} parameter servers"
            )
        time.sleep(_PAUSE)
        missing = silent(missing)


@contextlib.contextmanager
def _lost_servers(found: Cluster) -> Iterator[None]:
    """A lost parameter server is told as such."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        gone = _fallen_silent(found.servers)
        raise WorkerLost(
            f"parameter servers lost: {', '.join(gone) or 'one, for a moment'}; with them the "
            "weights. Start again from the newest checkpoint (penstock train --restarts 3 does). "
            f"TensorFlow says: {str(error)[:300]}"
        ) from error


def _check(model: Any, options: Options, strategy: Any, validated: bool, workers: int) -> None:
    from penstock.train.running import _check as check_model
    from penstock.train.running import overwrites
    from penstock.train.scaling import needs_scale
    from penstock.train.weighing import refuse_stateful

    check_model(model, validated)
    if workers > 1:
        refuse_stateful(model, f"steps that {workers} workers take at the same time")
    if overwrites(model):
        raise ConfigError(
            "the optimizer has an ema_overwrite_frequency, which breaks with parameter servers: "
            "leave it out"
        )
    if needs_scale(model) or options.precision == "mixed_float16":
        raise ConfigError(
            "mixed_float16 needs one loss scale for all steps, which asynchronous steps have not: "
            'use precision="mixed_bfloat16" with parameter servers'
        )
    idle = [name for name in ("profile", "remat") if getattr(options, name)]
    idle += ["jit"] if options.jit is True else []
    idle += ["run_eagerly"] if model.run_eagerly else []
    if idle:
        warnings.warn(
            f"{', '.join(idle)}: of no effect with parameter servers, whose workers take their "
            "steps as the chief hands them out",
            RuntimeWarning,
            stacklevel=2,
        )
    if options.micro_batch == "auto":
        raise ConfigError(
            'micro_batch="auto" is measured on the device of this process; the chief of parameter '
            "servers has none: give a number of rows"
        )
    if strategy.num_replicas_in_sync > 1:
        raise ConfigError(
            f"each worker sees {strategy.num_replicas_in_sync} GPUs; with parameter servers a "
            "worker uses one: penstock train --gpus-per-worker 1, and more workers"
        )
