"""Which tasks a job makes, on which machine and at which address, and what each of them is told.

Of several machines, each has a row of ports: the first for the supervisors' own talk (`peers`),
the next for its tasks: chief, parameter servers, workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.train.cluster import Cluster, Role
from penstock.train.launcher.job import Job
from penstock.train.launcher.ports import free_ports
from penstock.train.nodes import moved

CHECKPOINTS = "PENSTOCK_TRAIN_CHECKPOINTS"
PROFILE = "PENSTOCK_TRAIN_PROFILE"
ATTEMPT = "PENSTOCK_TRAIN_ATTEMPT"
SUMMARY = "PENSTOCK_TRAIN_SUMMARY"
TIMEOUT = "PENSTOCK_TRAIN_TIMEOUT"


@dataclass(frozen=True)
class Place:
    """One task: its role, its number among those, and the machine it runs on."""

    role: Role
    index: int
    machine: int

    @property
    def name(self) -> str:
        """For people."""
        return "chief" if self.role == "chief" else f"{self.role} {self.index}"


def places(job: Job) -> list[Place]:
    """Every task of the job, on all machines, in the order of their ports there."""
    machines = range(job.machines)
    chief = [Place("chief", 0, 0)] if job.servers else []
    servers = [Place("ps", index, index % job.machines) for index in range(job.servers)]
    workers = [
        Place("worker", machine * job.workers + local, machine)
        for machine in machines
        for local in range(job.workers)
    ]
    return chief + servers + workers


def ports_needed(job: Job) -> int:
    """How many ports a machine needs: for its tasks and for the supervisors."""
    every = places(job)
    return 1 + max(sum(each.machine == m for each in every) for m in range(job.machines))


def here(job: Job) -> list[Place]:
    """The tasks of this machine."""
    return [place for place in places(job) if place.machine == job.rank]


def clusters(job: Job) -> dict[Place, Cluster]:
    """What each task of this machine is told. On one machine the ports are free ones, new ones
    each time; on several they are as they were named."""
    every = places(job)
    at = dict(zip(every, _addresses(job, every), strict=True))
    chief = next((at[place] for place in every if place.role == "chief"), None)
    whole = Cluster(
        tuple(at[place] for place in every if place.role == "worker"),
        tuple(at[place] for place in every if place.role == "ps"),
        chief,
        source=job.source,
    )
    return {place: replace(whole, role=place.role, index=place.index) for place in here(job)}


def _addresses(job: Job, every: Sequence[Place]) -> list[str]:
    if not job.nodes:
        return [f"127.0.0.1:{port}" for port in free_ports(len(every))]
    seen = [1] * job.machines
    found = []
    for place in every:
        found.append(moved(job.nodes[place.machine], seen[place.machine]))
        seen[place.machine] += 1
    return found


def environment(job: Job, cluster: Cluster, attempt: int, summary: str) -> dict[str, str]:
    """What is different for a task's process, beside its devices."""
    changes = {"TF_CONFIG": cluster.tf_config(), ATTEMPT: str(attempt), "PYTHONUNBUFFERED": "1"}
    changes[TIMEOUT] = str(job.timeout)
    if job.checkpoints:
        changes[CHECKPOINTS] = job.checkpoints
    if job.profile:
        changes[PROFILE] = job.profile
    if cluster.is_chief:
        changes[SUMMARY] = summary
    return changes
