"""The machines of a job, as Slurm, Kubernetes or the user names them: an address each, and a rank.

A node's address is the first of its ports; those after it are for its next tasks.

- Slurm: a node is a task of a step (`srun`), told by SLURM_STEP_NUM_TASKS, SLURM_PROCID,
  SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE. Slurm names no ports, unless they are reserved
  (`srun --resv-ports`): then SLURM_STEP_RESV_PORTS. Else they follow from the job's number.
- Kubernetes: a node is a pod of an Indexed Job (JOB_COMPLETION_INDEX) with a headless service. How
  many pods there are Kubernetes does not tell: the manifest sets PENSTOCK_TRAIN_NODES. An Indexed
  Job without it is taken for jobs that have nothing to do with each other.

PENSTOCK_TRAIN_PORT sets the first port for both. TPU pods are not supported.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ConfigError

PORT = "PENSTOCK_TRAIN_PORT"
NODES = "PENSTOCK_TRAIN_NODES"
_KUBERNETES_PORT = 2222  # what Kubeflow uses, too
_SLURM_PORTS = range(10_000, 30_000)  # below those that Linux hands out by itself
_MOST = 65_535


@dataclass(frozen=True)
class Nodes:
    """`host:port` of each, and which one this is."""

    addresses: tuple[str, ...]
    rank: int
    source: str


def nodes_found(environ: Mapping[str, str], ports: int = 1) -> Nodes | None:
    """What Slurm or Kubernetes says; each node needs so many ports. `None`: neither runs this."""
    return _slurm(environ, ports) or _kubernetes(environ, ports)


def nodes_named(text: str, rank: int | None) -> Nodes:
    """`host:port,host:port` and a rank, as they are given by hand."""
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses:
        raise ConfigError(f"--nodes: expected host:port,host:port,...; got {text!r}")
    for address in addresses:
        check_address(address)
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"--nodes: the same address twice in {text}")
    if rank is None and len(addresses) > 1:
        raise ConfigError(f"--nodes names {len(addresses)} machines: --rank says which this is")
    rank = rank or 0
    if not 0 <= rank < len(addresses):
        raise ConfigError(f"--rank: expected 0 to {len(addresses) - 1}; got {rank}")
    return Nodes(addresses, rank, "--nodes")


def check_address(address: str) -> tuple[str, int]:
    """Host and port, or a `ConfigError`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _MOST:
        raise ConfigError(f"an address is host:port with a port up to {_MOST}; got {address!r}")
    return host, int(port)


def moved(address: str, by: int) -> str:
    """The address with so many ports more."""
    host, port = check_address(address)
    if port + by > _MOST:
        raise ConfigError(f"{address}: its tasks need ports up to {port + by}; {_MOST} is the last")
    return f"{host}:{port + by}"


# ── Slurm ───────────────────────────────────────────────────────────────────────────────────────


def _slurm(environ: Mapping[str, str], ports: int) -> Nodes | None:
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None  # no step: a batch script, or a shell
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    if tasks == 1:
        return None
    hosts = hosts_of(_said(environ, "SLURM_STEP_NODELIST"))
    counts = counts_of(_said(environ, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(counts) or sum(counts) != tasks:
        raise ConfigError(
            f"Slurm's variables contradict each other: {tasks} tasks, "
            f"SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']} ({len(hosts)} hosts), "
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']}"
        )
    if _said(environ, "SLURM_DISTRIBUTION", "block").startswith(("cyclic", "plane", "arbitrary")):
        raise ConfigError(
            f"SLURM_DISTRIBUTION={environ['SLURM_DISTRIBUTION']}: expected tasks in blocks, "
            "node by node (srun --distribution=block)"
        )
    first = _slurm_port(environ, max(counts) * ports)
    addresses = tuple(
        f"{host}:{first + local * ports}"
        for host, count in zip(hosts, counts, strict=True)
        for local in range(count)
    )
    rank = _number(environ, "SLURM_PROCID")
    if rank >= tasks:
        raise ConfigError(f"SLURM_PROCID: expected less than {tasks}; got {rank}")
    return Nodes(addresses, rank, "Slurm")


def _slurm_port(environ: Mapping[str, str], needed: int) -> int:
    if PORT in environ:
        return _number(environ, PORT)
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "")
    match = re.fullmatch(r"(\d+)-(\d+)", reserved)
    if match and int(match[2]) - int(match[1]) + 1 >= needed:
        return int(match[1])
    job = _number(environ, "SLURM_JOB_ID", 0) * 31 + _number(environ, "SLURM_STEP_ID", 0)
    slots = len(_SLURM_PORTS) // max(needed, 16)
    return _SLURM_PORTS.start + job % slots * max(needed, 16)


def hosts_of(text: str) -> list[str]:
    """Slurm's list of hosts, written out: `a[1-2,08],b` is a1, a2, a08, b."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else _range(ranges, text)
            names = [name + end for name in names for end in ends]
        hosts += names
    return hosts


def _range(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for each in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", each)
        if match is None:
            raise ConfigError(f"SLURM_STEP_NODELIST: expected names like node[1-3,7]; got {text!r}")
        last = int(match[2] or match[1])
        numbers += [str(number).zfill(len(match[1])) for number in range(int(match[1]), last + 1)]
    return numbers


def counts_of(text: str) -> list[int]:
    """Slurm's tasks by node, written out: `2(x3),1` is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE: expected 2(x3),1; got {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


# ── Kubernetes ──────────────────────────────────────────────────────────────────────────────────


def _kubernetes(environ: Mapping[str, str], ports: int) -> Nodes | None:
    if NODES not in environ:
        return None
    if "JOB_COMPLETION_INDEX" not in environ:
        raise ConfigError(
            f"{NODES} is set, but not JOB_COMPLETION_INDEX: expected a pod of a Job with "
            "completionMode: Indexed"
        )
    count, rank = _number(environ, NODES), _number(environ, "JOB_COMPLETION_INDEX")
    if rank >= count:
        raise ConfigError(f"JOB_COMPLETION_INDEX: expected less than {NODES}={count}; got {rank}")
    if count == 1:
        return None
    port = _number(environ, PORT, _KUBERNETES_PORT)
    name, _, domain = own_name().partition(".")
    stem, _, number = name.rpartition("-")
    if not domain or number != str(rank):
        raise ConfigError(
            f"this pod's name is {own_name()}; expected JOB-{rank}.SERVICE.…: the pod template "
            "needs `subdomain: SERVICE`, the name of a headless service (clusterIP: None)"
        )
    addresses = tuple(f"{stem}-{index}.{domain}:{port}" for index in range(count))
    return Nodes(addresses, rank, "Kubernetes")


def own_name() -> str:
    """This machine's full name, as its own hosts file has it."""
    return socket.getfqdn()


def _said(environ: Mapping[str, str], name: str, default: str | None = None) -> str:
    text = environ.get(name, default)
    if text is None:
        raise ConfigError(f"{name} is not set; Slurm sets it for each task of a step (srun)")
    return text


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name}: expected a whole number, got {text!r}")
    return int(text)
