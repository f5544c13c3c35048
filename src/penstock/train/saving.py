"""What of a run is kept in a checkpoint, and how it goes on from there.

All that decides what the next step does: weights, random seeds, the optimizer's state, the loss
scale, what metrics have counted in this epoch, the position in the data, the seed of its order,
what callbacks remember (`memories`) and the history so far. Variables are named by their number and
kind, not by the layers' own names, which Keras numbers anew in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.train.carry import state_of
from penstock.train.memories import PREFIX
from penstock.train.scaling import LossScale, optimizer_of
from penstock.train.tally import Tally

if TYPE_CHECKING:
    from penstock.train.checkpoints import State

_CHANCE = "chance/state"  # of layers without a seed; older checkpoints have none
_COUNTED = "metrics/"  # begins the names of what metrics have counted


class Kept:
    """The variables of a run."""

    def __init__(self, model: Any, tally: Tally, scale: LossScale | None) -> None:
        self._model, self._tally, self._scale = model, tally, scale

    def arrays(self, counted: Sequence[Any] | None) -> dict[str, Any]:
        """Values by name. `counted`: what all replicas have counted; `None`: the one has."""
        values = {name: variable.numpy() for name, variable in self._lasting()}
        counters = self._tally.counters if counted is None else counted
        for name, counter in zip(self._counter_names(), counters, strict=True):
            values[name] = counter.numpy()
        return values

    def lasting(self) -> list[Any]:
        """All variables but what metrics have counted."""
        return [variable for _, variable in self._lasting()]

    def facts(self) -> dict[str, Any]:
        """What is no array."""
        return {"loss_scale": self._scale.to_json() if self._scale is not None else None}

    def restore(self, state: State) -> bool:
        """As they were. Whether all metrics are, too: where others are counted now, the loss is."""
        arrays = {name: each for name, each in state.arrays.items() if not name.startswith(PREFIX)}
        counted = {name: arrays.pop(name) for name in list(arrays) if name.startswith(_COUNTED)}
        lasting = dict(self._lasting())
        if _CHANCE not in arrays or _CHANCE not in lasting:  # few models draw of it
            arrays.pop(_CHANCE, None)
            lasting.pop(_CHANCE, None)
        _check(_shapes(lasting), _shapes(arrays))
        for name, variable in lasting.items():
            variable.assign(arrays[name])
        counters = dict(zip(self._counter_names(), self._tally.counters, strict=True))
        same = _shapes(counters) == _shapes(counted)
        of_loss = {id(each) for each in self._model._loss_tracker.variables}  # Keras' first
        for name, variable in counters.items():
            if same or id(variable) in of_loss:
                variable.assign(counted[name])
        if self._scale is not None and state.facts.get("loss_scale"):
            self._scale.from_json(state.facts["loss_scale"])
        return same

    def _lasting(self) -> Iterator[tuple[str, Any]]:
        for number, variable in enumerate(state_of(self._model)):
            yield f"model/{number}/{_kind(variable)}", variable
        for number, variable in enumerate(optimizer_of(self._model).variables):
            yield f"optimizer/{number}", variable
        if self._tally.chance is not None:
            yield _CHANCE, self._tally.chance.state

    def _counter_names(self) -> list[str]:
        counters = enumerate(self._tally.counters)
        return [f"{_COUNTED}{number}/{_kind(each)}" for number, each in counters]


def _kind(variable: Any) -> str:
    return "state" if "seed_generator" in variable.path else str(variable.name).rpartition("/")[2]


def _shapes(named: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in named.items()}


def _check(expected: dict[str, Any], got: dict[str, Any]) -> None:
    differing = sorted(name for name in {*expected, *got} if expected.get(name) != got.get(name))
    if differing:
        named = ", ".join(
            f"{name} (expected {expected.get(name)}, got {got.get(name)})" for name in differing[:4]
        )
        raise ConfigError(
            f"the newest checkpoint is of another model or optimizer: {named}; "
            "give another folder, or resume=False"
        )
