"""The engine of a job, its own or one that runs already, and what is known of the model in it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.client.client import Client, connect
from penstock.config import COMPILE_MODES, Model
from penstock.engine.owner import Engine
from penstock.errors import ConfigError
from penstock.spec import ModelSpec

_PLAIN = "python"  # the mode of what is not compiled
_WAIT = 30.0
_DECODED = "256"  # rows of a batch, at most


@dataclass(frozen=True)
class Served:
    """A model, ready in an engine."""

    client: Client
    model: str
    spec: ModelSpec
    max_batch: int
    batched: bool
    facts: dict[str, Any]
    devices: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        """Whether it is run at fixed sizes, to which batches are filled up."""
        return self.batched and self.facts.get("mode", _PLAIN) != _PLAIN

    @property
    def rate(self) -> float:
        """Rows a second that the devices can do, as far as that was measured; else 0."""
        rates = self.facts.get("rates") or {}
        return float(max(rates.values(), default=0.0) * len(self.devices))

    def batch_of(self, sample: Any) -> int:
        """Rows such as these that are one request, and a batch of the engine's or part of one.

        Raises `InputError` where they do not fit.
        """
        return min(self.max_batch, self.client.model_info(self.model, sample).request_rows)

    def plan(self) -> dict[str, Any]:
        """What the result depends on beside the rows: written into the manifest."""
        return {
            "mode": self.facts.get("mode", _PLAIN),
            "precision": self.facts.get("precision", ""),
            "max_batch": self.max_batch,
            "batched": self.batched,
        }


def model_of(model: Any, settings: dict[str, Any]) -> Model:
    """The model as settings. Raises `ConfigError`."""
    if not isinstance(model, Model):
        return Model(model, **settings)
    if settings:
        raise ConfigError(f"{', '.join(settings)}: say it of the model, with penstock.Model")
    return model


@contextlib.contextmanager
def serving(
    model: Model,
    engine: dict[str, Any],
    known: dict[str, Any] | None = None,
    *,
    decodes: bool = False,
) -> Iterator[Served]:
    """An engine of the job's own. `known`: the plan that it must run by, of an earlier run.

    All batches of a job have one size, so the model is made ready for no other. Where rows are
    decoded, that is not too large a one: each loader has a few of them to fill.
    """
    model = dataclasses.replace(model, warm=_DECODED if decodes else "largest")
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(Engine(model, **engine))
        served = _look(running.client, model.name)
        if known is not None and served.plan() != known:
            stack.close()
            running = stack.enter_context(Engine(_pinned(model, known), **engine))
            served = _look(running.client, model.name)
            if served.plan() != known:
                raise ConfigError(
                    f"the job was begun with {_text(known)}; here the model runs with "
                    f"{_text(served.plan())}: go on where it was begun, or see restart"
                )
        yield served


@contextlib.contextmanager
def served_by(name: str, model: str, folder: str = "") -> Iterator[Served]:
    """A model of an engine that runs already; "" for its only one."""
    with connect(name, wait=_WAIT, folder=folder, label="penstock predict") as client:
        yield _look(client, model or None)


def content_of(served: Served) -> str:
    """What its engine tells by now of a model's content; "" where it does not."""
    statistics = served.client.statistics()
    facts = next((told.facts for told in statistics.models if told.name == served.model), {})
    return str(facts.get("content", ""))


def _look(client: Client, model: str | None) -> Served:
    info = client.model_info(model)
    statistics = client.statistics()
    facts = next((told.facts for told in statistics.models if told.name == info.name), {})
    devices = tuple(worker.device for worker in statistics.workers)
    return Served(client, info.name, info.spec, info.max_batch, info.batched, facts, devices)


def _pinned(model: Model, plan: dict[str, Any]) -> Model:
    """The model, to be run by this plan and no other."""
    settings: dict[str, Any] = {"max_batch": plan["max_batch"]}
    if plan["mode"] in COMPILE_MODES:
        settings["compile"] = plan["mode"]
    if model.precision == "auto" and plan["precision"]:
        settings["precision"] = plan["precision"]
    return dataclasses.replace(model, **settings)


def _text(plan: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plan.items() if value != "")
