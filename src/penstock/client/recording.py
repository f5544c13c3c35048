"""A client asks the engine to write down what becomes of every request, waits, and takes it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from penstock.errors import InputError, PenstockError, again
from penstock.statistics import statistics_of
from penstock.tracing.record import Meter, Trace, trace_of
from penstock.transport import messages as m

if TYPE_CHECKING:
    from penstock.client.session import Session

_LOOK = 0.25
_FAREWELL = 1.0


def record(session: Session, seconds: float, timeout: float) -> Trace:
    """Everything that ends in the engine in the next seconds. Raises `EngineClosed`."""
    if not 0 < seconds < 1e6:
        raise InputError(f"seconds: expected a positive number, got {seconds!r}")
    meter = Meter(statistics_of(session.ask(timeout)).pid)
    session.ask(timeout, m.ASK_TRACE_START)
    try:
        _wait(session, seconds)
    except BaseException:
        with contextlib.suppress(PenstockError):
            session.ask(_FAREWELL, m.ASK_TRACE)  # the engine writes nothing more down
        raise
    load = meter.load()
    return trace_of(
        lambda: session.ask(timeout, m.ASK_TRACE),
        statistics_of(session.ask(timeout)),
        seconds,
        load,
    )


def _wait(session: Session, seconds: float) -> None:
    """Until the time has passed, or the engine has gone: then raise why."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        session.reader.need_thread()
        with session.lock:
            if session.closed is not None:
                raise again(session.closed)
            change = session.await_change()
        change.wait(min(left, _LOOK))
