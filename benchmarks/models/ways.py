"""The ways to have images answered, each as processes that wait until a round measures them.

They are all started before the rounds and sit idle while another is measured, since loading
TensorFlow eight times takes longer than measuring.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core.load import Crowd, Timing
from benchmarks.core.memory import held_by
from benchmarks.core.processes import Child, Workspace, children
from benchmarks.core.systems.interface import Load
from benchmarks.models import sweep
from benchmarks.models.cores import Meter
from benchmarks.models.findings import Measured, Served, Trial
from benchmarks.models.plan import ALONE, PENSTOCK
from benchmarks.models.served import EngineProcess, between

_READY_WITHIN = 300.0
_BUILT_WITHIN = 180.0


class Group:
    """Processes that run a load together; all have ended when it is closed."""

    def __init__(self, load: Load, commands: Sequence[Sequence[str]], workspace: Workspace) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self.members: list[Child] = self._stack.enter_context(children(commands, workspace))
            deadline = time.monotonic() + _READY_WITHIN
            for member in self.members:
                member.hear(deadline)
        except BaseException:
            self.close()
            raise
        self._crowd = Crowd(load, self.members)

    def measure(self, timing: Timing) -> Measured:
        """One load."""
        meter = Meter(self.pids())
        sample = self._crowd.measure(timing)
        return Measured(sample, meter.use())

    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    def memory_bytes(self) -> int:
        """What all processes hold; what several of them map counts once (PSS)."""
        return sum(held_by(pid).pss for pid in self.pids())

    def close(self) -> None:
        self._stack.close()


class OwnModels(Group):
    """Eight processes, each with a model of its own."""

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        commands = [
            ["benchmarks.models.alone", str(folder), str(number)] for number in range(ALONE.clients)
        ]
        super().__init__(ALONE, commands, workspace)

    def measure_way(self, way: str, timing: Timing) -> Measured:
        """One load, of `model.predict` or of a `tf.function`."""
        for member in self.members:
            member.say({"way": way})
        deadline = time.monotonic() + _BUILT_WITHIN
        for member in self.members:
            member.hear(deadline)
        return self.measure(timing)


class ThroughPenstock(Group):
    """Eight clients, and the processes of the engine. `served`: what it did in the last load."""

    def __init__(self, engine: EngineProcess, folder: Path, workspace: Workspace) -> None:
        self.engine = engine
        self.served: Served | None = None
        commands = [
            [
                "benchmarks.models.client",
                engine.endpoint,
                str(folder),
                str(number),
                str(PENSTOCK.outstanding),
            ]
            for number in range(PENSTOCK.clients)
        ]
        super().__init__(PENSTOCK, commands, workspace)

    def measure(self, timing: Timing) -> Measured:
        before = self.engine.read()
        measured = super().measure(timing)
        clients_us = measured.sample.client_cpu_us_per_row
        self.served = between(before, self.engine.read(), clients_us)
        return measured

    def pids(self) -> list[int]:
        return [*self.engine.pids(), *super().pids()]

    def close(self) -> None:
        super().close()
        self.engine.close()


class InBatches(Group):
    """One process that runs the network in one mode, at one size, and nothing else."""

    def __init__(self, trial: Trial, folder: Path, workspace: Workspace) -> None:
        super().__init__(Load(1, 1), [[sweep.MODULE, str(folder)]], workspace)
        try:
            [member] = self.members
            member.say({"cell": [trial.mode, trial.size]})
            member.hear(time.monotonic() + _BUILT_WITHIN)
        except BaseException:
            self.close()
            raise
