"""What `penstock train` was asked for. Goes to the supervisor as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError
from penstock.train.nodes import Nodes
from penstock.train.options import TIMEOUT

_MOST_TASKS = 512  # on one machine


@dataclass(frozen=True)
class Job:
    """A script, how many processes run it here, and what they get.

    `workers` are those of this machine; each machine of `nodes` has as many. `servers` are all
    parameter servers; the machines take them in turn.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workers: int = 1
    servers: int = 0
    nodes: tuple[str, ...] = ()  # the first port of each machine; none: this machine alone
    rank: int = 0
    source: str = "this machine"
    gpus_per_worker: int | None = None  # None: the cards are shared out evenly
    gpu_memory: int = 0  # bytes of a card for each worker; 0: all of it
    restarts: int = 0
    checkpoints: str = ""
    profile: str = ""
    patience: float = 60.0  # seconds that a task may stand stopped
    timeout: float = TIMEOUT  # seconds that those who have not come are waited for
    grace: float = 5.0  # seconds between asking a task to end and killing it
    as_json: bool = False

    def __post_init__(self) -> None:
        if not Path(self.script).is_file():
            raise ConfigError(f"there is no script {self.script!r}")
        if not 1 <= self.workers <= _MOST_TASKS:
            raise ConfigError(f"workers: expected 1 to {_MOST_TASKS}, got {self.workers}")
        if not 0 <= self.servers <= _MOST_TASKS:
            raise ConfigError(f"ps: expected 0 to {_MOST_TASKS}, got {self.servers}")
        if self.restarts < 0:
            raise ConfigError(f"restarts: expected 0 or more, got {self.restarts}")
        if self.gpu_memory and self.gpus_per_worker not in (None, 1):
            raise ConfigError(
                "a share of GPU memory is of one card: --gpu-memory needs --gpus-per-worker 1, "
                f"got {self.gpus_per_worker}"
            )

    @property
    def machines(self) -> int:
        """How many run the job together."""
        return max(1, len(self.nodes))

    def on(self, nodes: Nodes | None) -> Job:
        """The same job on these machines."""
        if nodes is None:
            return self
        return dataclasses.replace(
            self, nodes=nodes.addresses, rank=nodes.rank, source=nodes.source
        )

    def to_json(self) -> str:
        """For the supervisor."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """In the supervisor."""
        told = json.loads(text)
        told["arguments"], told["nodes"] = tuple(told["arguments"]), tuple(told["nodes"])
        return cls(**told)
