"""Which processes train together, and which of them this one is, from the environment alone.

`found` looks for TF_CONFIG, which `penstock train`, Kubeflow and Vertex AI set, then for the
variables of Slurm and Kubernetes (`nodes`). Nothing here imports TensorFlow: who this process is
must be known before TensorFlow starts.

A cluster trains in one of two ways. Without parameter servers, all workers step together, and the
first of them (or a task named chief) is the chief, which also writes checkpoints. With them, the
chief trains nothing itself: it hands steps to the workers, and the servers keep the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from penstock.errors import ConfigError
from penstock.train.nodes import check_address, nodes_found

VARIABLE = "TF_CONFIG"

Role = Literal["worker", "chief", "ps"]
Kind = Literal["single", "multiworker", "parameter_server"]

_EXAMPLE = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Cluster:
    """The tasks, by address (`host:port`), and which of them this process is."""

    workers: tuple[str, ...]
    servers: tuple[str, ...] = ()
    chief: str | None = None
    role: Role = "worker"
    index: int = 0
    source: str = VARIABLE  # where this is known from

    def __post_init__(self) -> None:
        _check(self)

    @property
    def kind(self) -> Kind:
        """How it trains."""
        if self.servers:
            return "parameter_server"
        return "single" if self.size == 1 else "multiworker"

    @property
    def size(self) -> int:
        """How many tasks compute gradients."""
        beside = self.chief is not None and not self.servers
        return len(self.workers) + beside

    @property
    def is_chief(self) -> bool:
        """Whether this process tells the user, and writes."""
        return self.role == "chief" or (self.chief is None and self.rank == 0)

    @property
    def rank(self) -> int:
        """This task's number among the `size` that compute gradients; -1 if it is none of them."""
        if self.servers:
            return self.index if self.role == "worker" else -1
        return self.index + 1 if self.chief is not None and self.role == "worker" else self.index

    @property
    def address(self) -> str:
        """This task's own."""
        return self.tasks()[self.role][self.index]

    def tasks(self) -> dict[str, list[str]]:
        """Addresses by role, as TensorFlow's `ClusterSpec` takes them."""
        named = {
            "chief": [self.chief] if self.chief else [],
            "worker": list(self.workers),
            "ps": list(self.servers),
        }
        return {role: addresses for role, addresses in named.items() if addresses}

    def tf_config(self) -> str:
        """What to set TF_CONFIG to, for TensorFlow to see the same."""
        task = {"type": self.role, "index": self.index}
        return json.dumps({"cluster": self.tasks(), "task": task})


def found(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that this process belongs to; `None`: it trains alone.

    Raises `ConfigError` where the environment speaks of a cluster that cannot be.
    """
    if environ.get(VARIABLE, "").strip():
        return _from_tf_config(environ[VARIABLE])
    nodes = nodes_found(environ)
    if nodes is None:
        return None
    return Cluster(nodes.addresses, index=nodes.rank, source=nodes.source)


def _from_tf_config(text: str) -> Cluster | None:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise _refusal(f"it is not JSON ({error})", text) from None
    if not isinstance(told, dict):
        raise _refusal("it is no JSON object", text)
    cluster, task = told.get("cluster") or {}, told.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _refusal('"cluster" and "task" must be objects', text)
    if not cluster:
        return None
    unknown = sorted(set(cluster) - {"chief", "worker", "ps", "evaluator"})
    if unknown:
        raise _refusal(f"the roles are chief, worker and ps, not {', '.join(unknown)}", text)
    chiefs = _addresses(cluster, "chief", text)
    if len(chiefs) > 1:
        raise _refusal(f"there can be one chief, not {len(chiefs)}", text)
    role, index = _task(task, text)
    try:
        return Cluster(
            _addresses(cluster, "worker", text),
            _addresses(cluster, "ps", text),
            chiefs[0] if chiefs else None,
            role,
            index,
        )
    except ConfigError as error:
        raise _refusal(str(error), text) from None


def _addresses(cluster: Mapping[str, Any], role: str, text: str) -> tuple[str, ...]:
    named = cluster.get(role, [])
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise _refusal(f'"{role}" must be a list of "host:port"', text)
    return tuple(named)


def _task(task: Mapping[str, Any], text: str) -> tuple[Role, int]:
    role, index = task.get("type"), task.get("index", 0)
    if role == "evaluator":
        raise _refusal("the chief validates here: there is no evaluator", text)
    if role not in ("chief", "worker", "ps"):
        raise _refusal(f"the task's type must be chief, worker or ps, not {role!r}", text)
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise _refusal(f"the task's index must be a whole number, not {index!r}", text)
    return cast(Role, role), index


def _check(cluster: Cluster) -> None:
    tasks = cluster.tasks()
    every = [address for addresses in tasks.values() for address in addresses]
    for address in every:
        check_address(address)
    twice = sorted({address for address in every if every.count(address) > 1})
    if twice:
        raise ConfigError(f"two tasks have the address {twice[0]}")
    if not cluster.workers and (cluster.servers or not cluster.chief):
        raise ConfigError("there is no worker")
    if cluster.servers and not cluster.chief:
        raise ConfigError("there are parameter servers, but no chief to hand out the steps")
    mine = tasks.get(cluster.role, [])
    if not 0 <= cluster.index < len(mine):
        raise ConfigError(
            f"this task is {cluster.role} {cluster.index}, "
            f"but the cluster has {len(mine)} of that role"
        )


def _refusal(reason: str, text: str) -> ConfigError:
    shown = text if len(text) <= 300 else f"{text[:300]}…"
    return ConfigError(f"{VARIABLE} cannot be used: {reason}; expected {_EXAMPLE}; got {shown}")
