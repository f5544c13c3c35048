"""`Client`: predict, submit, predict_async and map, for any process of the machine.

A client knows an engine by its address, not by its connection: it connects when it is first used,
again after the engine was restarted, and anew in a forked or spawned child (`link`). Threads may
share it.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client import awaiting, fork, streams
from penstock.client.about import ServedModel
from penstock.client.allowance import WouldBlock
from penstock.client.answer import Answer
from penstock.client.call import Call
from penstock.client.link import Link
from penstock.client.session import Session
from penstock.errors import DeadlineExceeded, InputError, PenstockError
from penstock.statistics import Statistics, statistics_of
from penstock.transport import rendezvous
from penstock.transport.tensors import Array

if TYPE_CHECKING:
    from penstock.tracing.record import Trace


def connect(
    name_or_address: str | os.PathLike[str],
    *,
    wait: float = 5.0,
    folder: str = "",
    label: str = "",
) -> Client:
    """A client of the engine of that name, or at that socket (a path, or a text with a slash).

    Waits up to `wait` seconds for the engine to be there and ready; later calls, after the engine
    was restarted, wait as long, or until their deadline. `folder` is where its socket lies, as was
    said to the engine; `label` is how `penstock top` lists this client. Raises `EngineClosed` when
    there is no engine, `ModelLoadError` when it cannot load its models, and `ConfigError` for a
    name that no engine can have.
    """
    client = Client(rendezvous.address_of(name_or_address, folder), wait=wait, label=label)
    client.connect()
    return client


class Client:
    """A way to an engine. Make one with `penstock.connect`; close it, or let it go.

    Threads may share it. It can be pickled; that copy, and the client in a forked child, connects
    anew when it is first used. After the engine was restarted, the next call reconnects.
    """

    def __init__(self, address: Path, *, wait: float = 5.0, label: str = "") -> None:
        self.address = address
        self._link = Link(address, wait, label)
        self._lines = awaiting.Lines()
        fork.register(self)

    def connect(self) -> None:
        """Connect now rather than with the first call. Raises as `penstock.connect`."""
        self._session()

    def close(self) -> None:
        """End the connection. Calls that are open fail with `EngineClosed`."""
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.address, self._link.wait, self._link.label)

    def __repr__(self) -> str:
        return f"<penstock.Client of {self.address}>"

    # ── calls ──────────────────────────────────────────────────────────────────────────────────

    def predict(
        self,
        x: Any,
        *,
        model: str | None = None,
        deadline: float | None = None,
        priority: int = 0,
        caller: str = "",
    ) -> Any:
        """The model's outputs for these rows, any number of them: numpy in, numpy out.

        - `x`: an array whose first axis is rows, or a dict of them for several inputs
        - `model`: its name; needed only where the engine has several
        - `deadline`: seconds from now after which the answer is of no use
        - `priority`: of waiting requests, those of a higher one go first (-32768 to 32767)
        - `caller`: for whom a client asks that speaks for others: they take turns, as clients do

        Returns an array, or a dict of them where the model has several outputs. Raises
        `InputError` when `x` does not fit, `DeadlineExceeded`, `Overloaded` when a queue is full,
        `ModelError` when the model raised, `WorkerLost` when the rows killed their worker,
        `NoWorkers` when there is none left, and `EngineClosed` when there is no engine. Rows that
        fail while others succeed raise `RowsFailed`, which carries both.
        """
        answer = self._submit(x, model, self._absolute(deadline), priority, caller)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()
            raise
        finally:
            del answer  # see `Answer.result`

    def submit(
        self,
        x: Any,
        *,
        model: str | None = None,
        deadline: float | None = None,
        priority: int = 0,
        caller: str = "",
    ) -> Answer:
        """As `predict`, but returns a future at once.

        The rows are copied before it returns, so the arrays may be changed then. When they are more
        than the client may hold in flight, it first waits for the answers of earlier ones. The
        future is a `concurrent.futures.Future`; its `cancel` takes the request out of the queue.
        What is known at once (the rows do not fit, there is no engine) is raised at once, all else
        by its `result`.
        """
        return self._submit(x, model, self._absolute(deadline), priority, caller)

    async def predict_async(
        self,
        x: Any,
        *,
        model: str | None = None,
        deadline: float | None = None,
        priority: int = 0,
        caller: str = "",
    ) -> Any:
        """As `predict`, for asyncio: other tasks run on; cancelling it reaches the engine."""
        until = self._absolute(deadline)
        submit = partial(self._submit, x, model, until, priority, caller)
        answer = await self._lines.here().submitted(submit, until)
        return await awaiting.outcome(answer)

    def map(
        self,
        rows: Iterable[Any],
        *,
        ordered: bool = True,
        window: int | None = None,
        return_errors: bool = False,
        model: str | None = None,
        deadline: float | None = None,
        priority: int = 0,
        caller: str = "",
    ) -> Iterator[Any]:
        """A stream of rows in, a stream of their outputs out.

        Each item is one row (an array without the rows axis, or a dict of them). At most `window`
        rows are on their way at a time (by default, as many as keep all workers busy).
        `ordered=False` yields answers as they come. `deadline` counts from when a row is sent. With
        `return_errors`, a row that fails yields its error in place of ending the stream. All else
        is as in `predict`.
        """
        if window is None:
            session = self._session()
            window = 2 * session.kinds.model(model).max_batch * (session.workers + 1)
        if window < 1:
            raise InputError(f"window: expected at least 1, got {window}")

        def submit(row: Any) -> Answer:
            return self._submit(row, model, self._absolute(deadline), priority, caller)

        return streams.answers(submit, rows, window, ordered, return_errors)

    def statistics(self, timeout: float = 10.0) -> Statistics:
        """A snapshot of what the engine does and has done.

        Waits up to `timeout` seconds, then raises `DeadlineExceeded`; `EngineClosed` when there is
        no engine.
        """
        session = self._link.current
        if session is None or session.closed is not None:
            session = self._session()
        return statistics_of(session.ask(timeout))

    def trace(self, seconds: float = 5.0, timeout: float = 60.0) -> Trace:
        """What becomes of every request, of all clients, in the next seconds: where the time goes.

        Waits as long; other threads and processes work on meanwhile. `timeout` is for taking the
        recording afterwards, which may be large. An engine records for one client at a time.
        """
        from penstock.client.recording import record

        return record(self._session(), seconds, timeout)

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. (If not, the next call makes one.)"""
        session = self._link.current
        return session is not None and session.usable

    def models(self) -> tuple[str, ...]:
        """The names of the engine's models."""
        return tuple(info.name for info in self._session().kinds.models.values())

    def model_info(self, model: str | None = None, rows: Any = None) -> ServedModel:
        """What the engine says of a model, the only one or the one of that name.

        `rows`: some such as you will send, to be told how many of them go into one request. Raises
        `InputError` where they do not fit.
        """
        kinds = self._session().kinds
        info = kinds.model(model)
        told = ServedModel(info.name, info.spec, info.max_batch, info.batched)
        if rows is None:
            return told
        return replace(told, request_rows=kinds.sort(rows, info.name)[0].piece_rows)

    def stop_engine(self, drain: float = 10.0) -> None:
        """Ask the engine to work off its queue, for at most `drain` seconds, and end."""
        self._session().stop_engine(drain)

    # ── behind them ────────────────────────────────────────────────────────────────────────────

    def _submit(
        self,
        x: Any,
        model: str | None,
        until: int,
        priority: int,
        caller: str,
        block: bool = True,
        begun: awaiting.Begun | None = None,
    ) -> Answer:
        if priority != 0:
            check_priority(priority)
        session = self._link.current
        if session is None or not session.usable:
            if not block:
                raise WouldBlock(None)
            session = (
                self._session(until) if begun is None else self._link.session(until, begun.wanted)
            )
        kind, arrays, rows, trims = session.kinds.sort(x, model)
        whole = rows <= kind.piece_rows
        if kind.strings and whole:
            whole = kind.piece_end(arrays, 0, rows) == rows
        if not (whole or block):
            raise WouldBlock(None)
        call = Call(kind, rows, until, priority, caller_number(caller) if caller else 0)
        call.trims = trims
        answer = call.answer = Answer(session, call, self)
        if begun is not None:
            begun.made(answer)
        session.unanswered.add(answer)
        try:
            if whole:
                session.send_piece(call, arrays, 0, rows, 1, block)
                if until:
                    session.watch(call)
            else:
                self._feed(session, call, arrays)
        except Exception:
            session.unanswered.discard(answer)
            raise
        except BaseException:
            answer.cancel()  # nobody will ever hold it
            raise
        return answer

    def _feed(self, session: Session, call: Call, arrays: list[Array]) -> None:
        """Send a large call piece by piece, a bounded number of them at a time."""
        kind = call.kind
        fitting = session.queue_rows // kind.piece_rows  # what others are told to try again later
        window = max(1, min(max(8, kind.window * session.workers), fitting))
        stop = 0
        while stop < call.rows:
            start, stop = stop, kind.piece_end(arrays, stop, call.rows)
            try:
                session.send_piece(call, arrays, start, stop, window)
            except PenstockError as error:
                if start == 0:
                    raise
                call.give_up(error)
                session.cancel(call)
            if start == 0 and call.deadline:
                session.watch(call)
            if call.over:
                return

    def _absolute(self, deadline: float | None) -> int:
        """A call's deadline as a time of the monotonic clock, in nanoseconds; 0: it has none."""
        if deadline is None:
            return 0
        if deadline != deadline:
            raise InputError(f"deadline: expected seconds from now, got {deadline!r}")
        if deadline <= 0:
            raise DeadlineExceeded(f"the deadline had passed before the call ({deadline} s)")
        return self._now() + int(min(deadline, 1e8) * 1e9)

    def _now(self) -> int:
        return time.monotonic_ns()

    def _session(self, deadline: int = 0) -> Session:
        return self._link.session(deadline)

    def after_fork_in_child(self) -> None:
        """The connection is the parent's; the next call makes one of this process's own."""
        self._link.abandon_in_child()
        self._lines = awaiting.Lines()


def _unpickled(address: Path, wait: float, label: str) -> Client:
    return Client(address, wait=wait, label=label)


def caller_number(caller: str) -> int:
    """A number for somebody for whom a client speaks. Two of them seldom share one."""
    if not isinstance(caller, str):
        raise InputError(f"caller: expected a text, got {caller!r}")
    return zlib.crc32(caller.encode("utf-8", "surrogatepass")) or 1


def check_priority(priority: int) -> None:
    """Raise `InputError` unless it is a whole number that a message can carry."""
    if type(priority) is not int or not -32768 <= priority <= 32767:
        raise InputError(f"priority: expected a number from -32768 to 32767, got {priority!r}")
