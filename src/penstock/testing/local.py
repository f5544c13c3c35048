"""`LocalEngine`: an engine in this process, for tests of code that uses a client.

It *is* a `Client` (predict, submit, predict_async and map are the client's own code) whose requests
go to queue and batches in the same process (`inline`) in place of a socket. Lambdas and closures
are welcome as models.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock.client.answer import Answer
from penstock.client.awaiting import Begun
from penstock.client.call import Call
from penstock.client.client import Client, caller_number, check_priority
from penstock.client.kinds import Kinds, ModelInfo
from penstock.client.session import Session
from penstock.config import EngineConfig, Model
from penstock.errors import EngineClosed
from penstock.model.function import Function, Runnable
from penstock.model.load import load
from penstock.spec import check_name
from penstock.statistics import (
    BatchStatistics,
    ClientStatistics,
    ModelStatistics,
    RequestStatistics,
    Statistics,
    WorkerStatistics,
)
from penstock.testing.clock import Clock, SystemClock
from penstock.testing.faults import Faults
from penstock.testing.inline import InlineCore, LocalBatch
from penstock.tracing.record import Load, Trace
from penstock.transport.tensors import Array, numpy_dtype

Source = Callable[..., Any] | str | Model


class _NoReader:
    """Nobody reads a connection here: whoever works a batch off resolves its answers."""

    def __init__(self, core: InlineCore) -> None:
        self._core = core

    def wait_for(self, answer: Answer, timeout: float | None) -> None:
        """Another thread sees to it; if that was interrupted meanwhile, the caller does."""
        self._core.work_off()

    def follow(self, answer: Answer, timeout: float | None) -> None:
        """Wait for a moment."""
        arrived = answer.arrived  # made before one looks whether it is needed
        if not answer.done():
            arrived.wait(timeout)

    def need_thread(self) -> None:
        """There is none."""


class _Inside:
    """What the client's code looks at in a session."""

    workers = 1

    def __init__(self, core: InlineCore) -> None:
        self.kinds = Kinds()
        self.reader = _NoReader(core)
        self.cancel = core.cancel
        self.unanswered: set[Answer] = set()  # nobody's: there is no connection that could end
        self.pid = os.getpid()
        self._core = core

    def send_outbox(self) -> None:
        """Nothing is ever gathered here."""

    @property
    def usable(self) -> bool:
        """Whether calls can be made."""
        return not self._core.closed


class LocalEngine(Client):
    """An engine without processes, with the face of a `Client` and of an `Engine`.

    `models` is a function (also a lambda or closure), a source (`"module:callable"`), a `Model`, or
    a dict or list of them. It works as soon as it is made; `with` closes it. A call is worked off
    in the thread that makes it, unless the engine is held. `faults` lets things go wrong; `batches`
    are the batches that were run.
    """

    def __init__(
        self,
        models: Source | Mapping[str, Source] | Sequence[Source],
        *,
        name: str = "local",
        max_batch: int = Model.max_batch,
        inputs: Any = None,
        outputs: Any = None,
        batched: bool = Model.batched,
        queue_rows: int = EngineConfig.queue_rows,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(Path(check_name(name, "engine name")))
        settings = {
            "max_batch": max_batch,
            "inputs": inputs,
            "outputs": outputs,
            "batched": batched,
        }
        loaded = [_load(key, source, settings) for key, source in _named(models)]
        self.name = name
        self.faults = Faults()
        self._clock = clock or SystemClock()
        self._started = self._clock.now_ns()
        self._core = InlineCore(
            [model.name for model, _ in loaded],
            [runnable for _, runnable in loaded],
            self._clock,
            self.faults,
            queue_rows,
        )
        self._inside = _Inside(self._core)
        self._link.current = cast("Session", self._inside)
        for number, (model, runnable) in enumerate(loaded):
            info = ModelInfo(number, model.name, runnable.max_batch, runnable.batched)
            info.pads = model.pad
            info.spec = runnable.spec
            self._inside.kinds.models[number] = info

    # ── what only a test can do ────────────────────────────────────────────────────────────────

    @property
    def batches(self) -> list[LocalBatch]:
        """The batches that were run so far, the oldest first."""
        return self._core.batches

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._core.batcher.jobs

    def hold(self) -> contextlib.AbstractContextManager[LocalEngine]:
        """Let requests queue up until `release`, or until the end of a `with engine.hold():`."""
        self._core.held = True
        return self._released_afterwards()

    def release(self) -> None:
        """Run what was held, in the batches that a real engine would form."""
        self._core.held = False
        self._core.work_off()

    def run_batch(self) -> LocalBatch | None:
        """While the engine is held: run one batch. `None` when nothing waits."""
        return self._core.run_batch()

    @contextlib.contextmanager
    def _released_afterwards(self) -> Iterator[LocalEngine]:
        try:
            yield self
        finally:
            self.release()

    # ── the face of an engine ──────────────────────────────────────────────────────────────────

    @property
    def client(self) -> LocalEngine:
        """Itself."""
        return self

    def start(self) -> LocalEngine:
        """It runs already."""
        return self

    def __enter__(self) -> LocalEngine:
        return self

    def close(self, drain: float | None = None) -> None:
        """End it. Calls that are still held fail with `EngineClosed`."""
        super().close()
        self._core.close()

    def stop_engine(self, drain: float = 10.0) -> None:
        """As `close`."""
        self.close(drain)

    def statistics(self, timeout: float = 10.0) -> Statistics:
        """What a real engine would tell, of this one."""
        self._session()
        core = self._core
        with core.lock:
            counts, requests = core.counts, [r for open_ in core.open.values() for r in open_]
            worker = WorkerStatistics(
                index=0,
                pid=os.getpid(),
                device="cpu",
                state="ready",
                warm=True,
                starts=1 + core.deaths,
                batches=len(core.batches),
                rows=core.rows_done,
                busy=core.busy_ns / 1e9,
                inflight=0,
                segments=0,
            )
            client = ClientStatistics(
                number=1,
                pid=os.getpid(),
                label="local",
                outstanding=len(requests),
                answered=counts["done"] + counts["partial"],
                rows=core.rows_done,
                segments=0,
                bytes=0,
            )
            sizes = [batch.rows for batch in core.batches]
            return Statistics(
                name=self.name,
                pid=os.getpid(),
                state="ready",
                healthy=True,
                uptime=(self._clock.now_ns() - self._started) / 1e9,
                requests=RequestStatistics(
                    admitted=counts["admitted"],
                    queued=core.batcher.jobs,
                    queued_rows=core.batcher.rows,
                    done=counts["done"],
                    partial=counts["partial"],
                    failed=counts["failed"],
                    cancelled=counts["cancelled"],
                    refused=dict(core.refused),
                ),
                batches=BatchStatistics(
                    len(sizes),
                    core.rows_done,
                    {size: sizes.count(size) for size in sorted(set(sizes))},
                ),
                deaths=core.deaths,
                restarts=core.deaths,
                models=tuple(
                    ModelStatistics(info.name, info.max_batch, info.batched)
                    for info in self._inside.kinds.models.values()
                ),
                workers=(worker,),
                clients=(client,),
            )

    def trace(self, seconds: float = 5.0, timeout: float = 60.0) -> Trace:
        """An empty one, at once: there are no processes whose time could be looked at."""
        return Trace(seconds, 0, self.statistics(), Load(), {}, ())

    def __repr__(self) -> str:
        return f"<penstock.testing.LocalEngine {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a LocalEngine lives in one process; for several, use penstock.testing.running"
        )

    # ── in place of a connection ───────────────────────────────────────────────────────────────

    def _session(self, deadline: int = 0) -> Session:
        if not self._inside.usable:
            raise EngineClosed(f"the engine {self.name!r} was closed")
        return cast("Session", self._inside)

    def _submit(
        self,
        x: Any,
        model: str | None,
        until: int,
        priority: int,
        caller: str,
        block: bool = True,
        begun: Begun | None = None,
    ) -> Answer:
        check_priority(priority)
        session = self._session()
        kind, given, rows, trims = session.kinds.sort(x, model)
        arrays: list[Array] = [
            np.array(array, numpy_dtype(tensor.dtype), order="C")
            for tensor, array in zip(kind.signature, given, strict=True)
        ]
        call = Call(kind, rows, until, priority, caller_number(caller) if caller else 0)
        call.trims = trims
        answer = call.answer = Answer(session, call, self)  # the call lets go of it at its end
        self._core.submit(call, arrays)
        self._core.work_off()
        if until and not call.over:
            answer.add_quick_callback(_ignoring(self._clock.call_at(until, self._core.expire)))
        return answer

    def _now(self) -> int:
        return self._clock.now_ns()

    def after_fork_in_child(self) -> None:
        """It works on in the child, on its own, as if nothing had happened."""
        super().after_fork_in_child()
        self._core.renew_lock()
        self._inside.pid = os.getpid()
        self._link.current = cast("Session", self._inside)


def _named(models: Any) -> list[tuple[str, Source]]:
    if isinstance(models, Mapping):
        return [(str(key), source) for key, source in models.items()]
    if isinstance(models, Sequence) and not isinstance(models, str):
        return [("", source) for source in models]
    return [("", models)]


def _load(name: str, source: Source, settings: dict[str, Any]) -> tuple[Model, Runnable]:
    if isinstance(source, Model):
        model = dataclasses.replace(source, name=name or source.name)
        return model, load(model)
    if isinstance(source, str):
        model = Model(source, name=name, **settings)
        return model, load(model)
    known = getattr(source, "__name__", type(source).__name__)
    model = Model(f"test:{known}", name=name or known.replace("<lambda>", "model"), **settings)
    target = Function(source, model.spec, model.max_batch, model.batched, known)
    return model, target


def _ignoring(call_off: Callable[[], None]) -> Callable[[Any], None]:
    return lambda _: call_off()
