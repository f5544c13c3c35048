"""What the parts of a run share: the plan, the folder, what was found so far, and one engine."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from benchmarks.core.processes import ChildFailed
from benchmarks.gpu.place import Place
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.results import Results
from benchmarks.gpu.served import ServedNetwork


@dataclass
class Bench:
    """`settings` are those of Penstock's engine."""

    plan: Plan
    place: Place
    results: Results
    settings: dict[str, Any]
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _engine: ServedNetwork | None = None
    _failure: ChildFailed | None = None

    def engine(self) -> ServedNetwork:
        """An engine with the network. Parts in a row share one."""
        if self._failure is not None:
            raise self._failure
        if self._engine is None:
            try:
                self._engine = ServedNetwork(self.place, self.settings)
            except ChildFailed as failure:
                self._failure = failure  # the next part need not wait for the same
                raise
            self._stack.callback(self._engine.close)
        return self._engine

    def end_engine(self) -> None:
        """Nothing of Penstock runs after this."""
        self._engine = None
        self._stack.close()

    def against_limit(self, images_per_s: float) -> str:
        """A rate as a share of the limit, in words."""
        limit = self.results.limit(self.plan.precision)
        return f"{images_per_s / limit:.3f} of the limit" if limit else "limit not measured"


def settings_of(plan: Plan, given: dict[str, Any]) -> dict[str, Any]:
    """Penstock's settings: what a user would have to say, and no more."""
    settings: dict[str, Any] = {}
    if plan.precision != "float32":
        settings["precision"] = plan.precision
    if plan.max_batch:
        settings["max_batch"] = plan.max_batch
    return settings | given
