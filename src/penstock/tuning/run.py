"""`penstock.tune`: a process is started, measures, tells, and is gone. Its memory goes with it.

caller ── settings, a pipe, its own pidfd ──▶ python -m penstock.tuning
       ◀── lines of JSON: {"say": …}, then {"plan": …} or {"error": …, "kind": …} ──

On a GPU it has a share of the card meanwhile, as an engine would: all that is left, taken from the
ledger, and TensorFlow is kept to it. Where that is too little it is refused before it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock import launch
from penstock.config import EngineConfig, Model, to_json
from penstock.devices import ledger
from penstock.devices.choose import Placement, resolve, roomiest
from penstock.devices.plan import beside
from penstock.devices.plan import plan as fitting
from penstock.errors import ConfigError, ModelLoadError, from_message
from penstock.model.live import archived
from penstock.model.pace import MOST_BUFFERS
from penstock.model.plans import entry_of, likely_need
from penstock.tuning import remembered
from penstock.tuning.plan import Plan

_LIMIT = 600.0
_EXIT_LIMIT = 5.0
_LONGEST = 3600.0  # seconds of one wait: poll takes no more than some weeks

Tell = Callable[[str], None]


def tune(
    model: Any,
    *,
    device: str | None = None,
    timeout: float = _LIMIT,
    tell: Tell | None = None,
    **settings: Any,
) -> Plan:
    """Measure how a model runs best on a device, and remember it for the engines to come.

    `model` is a source or a `Model`; with a source, all other arguments are fields of `Model`, for
    example `precision="auto"`. `device` is "cpu", "gpu:0" or a GPU's UUID (default: the GPU with
    the most room, else the CPU). `tell` is called with what goes on. Runs in a process of its own,
    which ends; a second call with the same model answers from the cache. Raises `ModelLoadError`
    when the model cannot be loaded, or is not one of TensorFlow's, and when `timeout` seconds have
    passed (`inf`: never); `DeviceMemoryError` when it does not fit.
    """
    chosen = _model(model, settings)
    if not timeout > 0:
        raise ConfigError(f"timeout: expected seconds, more than 0; got {timeout!r}")
    placements = resolve(device or "auto", 1 if device else 0)
    say = tell or (lambda text: None)
    launch.open_standard()
    with archived([chosen]) as ((told,), archives):
        for placement in placements:
            known = remembered.recall(entry_of(told, placement.device), chosen)
            if known is not None:
                return known
        placement = roomiest(placements)
        entry = entry_of(told, placement.device)
        with _share(told, placement) as limited:
            say(f"starting a process on {placement.name}")
            answer = _measured(told, limited, archives, timeout, say)
    plan = Plan.from_json({**answer["plan"], "source": remembered.source_text(chosen)})
    remembered.keep(entry, plan, answer["findings"])
    return plan


@contextlib.contextmanager
def _share(model: Model, placement: Placement) -> Iterator[Placement]:
    """The same place with all that is left of its card, as the only worker of an engine has it."""
    if not placement.on_gpu:
        yield placement
        return
    needs = {model.name: likely_need(model, placement.device)}
    here = [room for room in ledger.rooms() if room.card.uuid == placement.device]
    fitting(needs, here).require()
    share = ledger.take(None, f"tuning {model.name}", card=placement.device)
    try:
        programs, buffers, _ = beside(needs, share.promise.size, MOST_BUFFERS)
        yield dataclasses.replace(placement, memory=share.promise.size - programs - buffers)
    finally:
        share.release()


def _model(model: Any, settings: dict[str, Any]) -> Model:
    if isinstance(model, Model):
        if settings:
            raise ConfigError(f"{', '.join(settings)}: say it of the model, with penstock.Model")
        return model
    known = {field.name for field in dataclasses.fields(Model)} - {"source"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(
            f"unknown setting {unknown[0]!r}; known: device, timeout, tell, "
            f"{', '.join(sorted(known))}"
        )
    return Model(model, **settings)


def _measured(
    model: Model, placement: Placement, archives: dict[str, int], timeout: float, say: Tell
) -> dict[str, Any]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    owner = os.pidfd_open(os.getpid())
    process: subprocess.Popen[bytes] | None = None
    patience = 0.0
    try:
        try:
            settings = to_json(
                [model],
                EngineConfig(),
                sys_path=_import_path(),
                environment=placement.environment(),
                device=placement.name,
            )
            descriptors = {"news": writer, "owner": owner, **archives}
            process = launch.start("penstock.tuning", settings, descriptors, detached=False, log=2)
        finally:
            os.close(writer)
            os.close(owner)
        answer = _listen(process, reader, model.name, time.monotonic() + timeout, say)
        patience = _EXIT_LIMIT
        return answer
    finally:
        os.close(reader)
        if process is not None:
            _end(process, patience)


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait for its end, or end it, and whatever it has started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _import_path() -> list[str]:
    """Where this process finds modules, as the other one should too."""
    return [str(Path(place).resolve()) if place else os.getcwd() for place in sys.path]


def _listen(
    process: subprocess.Popen[bytes], reader: int, name: str, deadline: float, say: Tell
) -> dict[str, Any]:
    """What the process tells, until its answer, its end or the deadline."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    buffer = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ModelLoadError(f"tuning {name!r} took too long; see timeout")
        if not poll.poll(min(left, _LONGEST) * 1000):
            continue
        chunk = os.read(reader, 65536)
        if not chunk:
            code = process.wait(_EXIT_LIMIT)
            raise ModelLoadError(f"tuning {name!r} ended early: {launch.exit_text(code)}")
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            news: dict[str, Any] = json.loads(line)
            if "say" in news:
                say(news["say"])
            elif "error" in news:
                message, _, remote = news["error"].partition("\0")
                raise from_message(news["kind"], message, remote)
            else:
                return news
