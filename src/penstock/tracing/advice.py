"""Which stage is the limit, and what would help: one sentence, from the figures of a summary.

A worker that is busy nearly all the time is the limit itself; what it is busy with says how. Where
workers idle, whatever they mostly wait for is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.tracing.record import Load
    from penstock.tracing.summary import ModelUse, WorkerUse

_BUSY = 0.85
_PADDED = 0.2
_SMALL = 0.5
_FULL = 0.9
_NO_CORE_FREE = 0.95


@dataclass(frozen=True)
class Limit:
    """The limiting stage, and advice.

    `stage` is `device`, `gather`, `scatter`, `engine`, `clients`, `batching`, `messages`, `cores`
    or `nothing` (no request ended).
    """

    stage: str
    advice: str


def limit_of(device: WorkerUse, models: dict[str, ModelUse], load: Load) -> Limit:
    """What to look at first."""
    used = {name: model for name, model in models.items() if model.batches}
    if not used:
        return Limit("nothing", "no request ended while the trace was on")
    if device.busy >= _BUSY:
        return _busy(device, used)
    idle = percent(1 - device.busy)
    if load.engine is not None and load.engine >= _BUSY:
        return Limit(
            "engine",
            f"the engine's own process uses {percent(load.engine)} of a core, and the device idles "
            f"{idle} of the time: send more rows in each request",
        )
    if device.held > max(device.starved, device.messages):
        return Limit(
            "batching",
            f"the device idles {idle} of the time, mostly while requests wait: "
            f"batches close because {_reasons(used)}",
        )
    if load.machine is not None and load.machine >= _NO_CORE_FREE:
        return Limit(
            "cores",
            f"the device idles {idle} of the time, and {percent(load.machine)} of all cores are in "
            "use: clients and messages wait for one; run fewer processes or threads",
        )
    if device.starved >= device.messages:
        return Limit(
            "clients",
            f"the device idles {idle} of the time, mostly with nothing waiting: "
            "more requests outstanding would help",
        )
    return Limit(
        "messages",
        f"the device idles {idle} of the time, mostly while messages are on their way: the model "
        "is faster than they are; send more rows in each request, or more requests at a time",
    )


def _busy(device: WorkerUse, used: dict[str, ModelUse]) -> Limit:
    if device.gather > device.run:
        return Limit(
            "gather",
            f"gather takes longer than run ({percent(device.gather)} and {percent(device.run)} of "
            "the device's time): rows are large for what is computed from them; send a "
            "smaller dtype, or scale them up in the model",
        )
    if device.scatter > device.run:
        return Limit(
            "scatter",
            f"scatter takes longer than run ({percent(device.scatter)} and {percent(device.run)} "
            "of the device's time): answers are large; let the model return less",
        )
    return Limit(
        "device",
        f"the device is busy {percent(device.busy)} of the time: it is the limit{_tail(used)}",
    )


def _tail(used: dict[str, ModelUse]) -> str:
    """What stands out in the batches of the model that takes the most of the workers' time."""
    name, model = max(used.items(), key=lambda item: item[1].busy)
    if model.unbatched:
        return f"; {name} runs one request at a time: {model.unbatched}"
    if model.padding >= _PADDED:
        return f"; {percent(model.padding)} of the rows that {name} runs are padding"
    full = model.mean_batch / model.max_batch
    if full < _SMALL:
        return (
            f"; batches of {name} have {model.mean_batch:.1f} of at most {model.max_batch} rows: "
            "more requests outstanding would fill them"
        )
    if full >= _FULL:
        return f"; batches of {name} are full: a larger max_batch (now {model.max_batch}) may help"
    return ""


_BECAUSE = {
    "full": "they are full",
    "idle": "the worker has nothing to do",
    "ahead": "the worker is about to be free",
    "complete": "all clients that were waited for have asked",
    "waited": "a client that was waited for has not asked",
    "deadline": "a deadline is near",
    "fitting": "they fill a compiled size",
    "part": "the rest runs beside it, in a batch of its own",
    "single": "the model is not batched",
    "suspect": "a row may have killed its worker",
}


def _reasons(used: dict[str, ModelUse]) -> str:
    """Why most batches were closed, the two most frequent reasons."""
    counts: dict[str, float] = {}
    for model in used.values():
        for reason, share in model.closed.items():
            counts[reason] = counts.get(reason, 0.0) + share * model.batches
    total = sum(counts.values())
    most = sorted(counts, key=lambda reason: -counts[reason])[:2]
    return ", or ".join(
        f"{_BECAUSE.get(reason, reason)} ({percent(counts[reason] / total)})" for reason in most
    )


def percent(share: float) -> str:
    """`0.974` as `97 %`; a little is not nothing: `<1 %`."""
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
