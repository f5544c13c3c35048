"""Answers for asyncio: no thread waits, and a task that is cancelled reaches the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.client.answer import Answer


async def submitted(submitting: Callable[[], Answer], begun: Sequence[Answer]) -> Answer:
    """Submit in a thread what may have to wait. What it has begun is cancelled with the task."""
    submission = asyncio.get_running_loop().run_in_executor(None, submitting)
    try:
        return await asyncio.shield(submission)
    except asyncio.CancelledError:
        for answer in begun:
            answer.cancel()  # also ends the sending
        submission.add_done_callback(_cancel_submitted)
        raise


async def outcome(answer: Answer) -> Any:
    """The answer's result, as soon as it is there."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    answer.add_quick_callback(lambda _: _wake(loop, waiter))
    try:
        await waiter
    except asyncio.CancelledError:
        answer.cancel()
        raise
    return answer.result()


def _cancel_submitted(submission: asyncio.Future[Answer]) -> None:
    """The task that wanted this answer was cancelled while it was being submitted."""
    if not submission.cancelled() and submission.exception() is None:
        submission.result().cancel()


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def finish() -> None:
        if not waiter.done():
            waiter.set_result(None)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:
        return  # the loop was closed: nobody waits
