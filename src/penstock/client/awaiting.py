"""Calls of asyncio: the loop runs on while they wait, and a cancelled task reaches the engine.

A call whose rows find a slot is submitted at once. The others wait, until their deadline at most::

    no slot                   ──▶ in line, one line a loop: the first of it waits for a change
    no connection, many rows  ──▶ a thread connects, or feeds the rows piece by piece

The threads are the client's own: the loop's executor is the program's.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from penstock.client.allowance import WouldBlock
from penstock.client.answer import Answer
from penstock.client.waiting import LOOK_UP, Latch
from penstock.errors import DeadlineExceeded

_MOST_THREADS = 32


class Begun:
    """What a thread has begun of a call, for whoever may lose interest in it."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._wanted = True

    def wanted(self) -> bool:
        """Whether anybody waits for it."""
        return self._wanted

    def made(self, answer: Answer) -> None:
        """The call has an answer to come. Nothing was sent yet."""
        self._answer = answer
        if not self._wanted:
            answer.cancel()

    def give_up(self) -> None:
        """Nobody waits any more: connecting and sending end."""
        self._wanted = False
        if self._answer is not None:
            self._answer.cancel()


class Submit(Protocol):
    """A call that is ready to be made."""

    def __call__(self, *, block: bool, begun: Begun | None = None) -> Answer:
        """Make it; `begun` is told of the answer before anything is waited for."""


class Lines:
    """A client's: one line for each loop that uses it."""

    def __init__(self) -> None:
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "penstock-async")

    def here(self) -> Line:
        """The line of the loop that runs."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            for other in [other for other in list(self._lines) if other.is_closed()]:
                self._lines.pop(other, None)
            line = self._lines.setdefault(loop, Line(self._threads))
        return line


class Line:
    """Where the calls of one loop wait until they can be submitted, in turn."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._turn = asyncio.Lock()

    async def submitted(self, submit: Submit, until: int) -> Answer:
        """Submit this call as soon as that can be."""
        if not self._turn.locked():
            try:
                return submit(block=False)
            except WouldBlock:
                pass
        left = max(0.0, (until - time.monotonic_ns()) / 1e9) if until else None
        try:
            async with asyncio.timeout(left) as limit:
                answer = await self._in_turn(submit)
                return answer if answer is not None else await self._in_thread(submit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the deadline passed before the rows could be sent") from None

    async def _in_turn(self, submit: Submit) -> Answer | None:
        """Submit this call when the others were, and there is a slot; None: that takes a thread."""
        async with self._turn:
            while True:
                try:
                    return submit(block=False)
                except WouldBlock as held:
                    change = held.change
                if change is None:
                    return None
                await _opened(change)

    async def _in_thread(self, submit: Submit) -> Answer:
        """A thread submits the call. What it has begun is cancelled with the task."""
        begun = Begun()
        submitting = partial(submit, block=True, begun=begun)
        submission = asyncio.get_running_loop().run_in_executor(self._threads, submitting)
        try:
            return await asyncio.shield(submission)
        except asyncio.CancelledError:
            begun.give_up()
            submission.add_done_callback(_over)
            raise


async def outcome(answer: Answer) -> Any:
    """The answer's result, as soon as it is there."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    answer.add_quick_callback(lambda _: _wake(loop, waiter))
    try:
        await waiter
    except BaseException:  # cancelled, or the loop has ended and its tasks are let go
        answer.cancel()
        raise
    return answer.result()


async def _opened(change: Latch) -> None:
    """There is a change, or it is time to look up."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    change.tell(lambda: _wake(loop, waiter))
    await asyncio.wait([waiter], timeout=LOOK_UP)


def _over(submission: asyncio.Future[Answer]) -> None:
    """Nobody wants to know any more how it went."""
    if not submission.cancelled():
        submission.exception()


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def finish() -> None:
        if not waiter.done():
            waiter.set_result(None)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:
        return  # the loop was closed: nobody waits
