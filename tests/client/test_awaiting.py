"""Calls of asyncio that have to wait: for a slot, a connection, or to be cut into pieces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.client.waiting import Latch
from penstock.errors import DeadlineExceeded, EngineClosed
from tests.client.conftest import model
from tests.client.gate import Gate
from tests.conditions import until

CREDITS = 4


@pytest.fixture
def narrow() -> Iterator[penstock.Engine]:
    """An engine of whose clients each may have few requests outstanding."""
    with penstock.Engine(model("gated", max_batch=1), client_requests=CREDITS) as started:
        yield started


async def _fill(client: penstock.Client, gate: Gate, more: int) -> list[asyncio.Task[Any]]:
    """All credits are taken, and `more` tasks wait for one."""
    tasks = [
        asyncio.create_task(client.predict_async(gate.rows(tag))) for tag in range(CREDITS + more)
    ]
    await asyncio.to_thread(gate.wait_started)
    return tasks


def test_a_loop_that_ends_early_cancels_what_it_waited_for(
    narrow: penstock.Engine, gate: Gate
) -> None:
    with asyncio.Runner() as runner:
        first = runner.run(_begin(narrow, gate.rows(1)))
        gate.wait_started()
        others = [runner.run(_begin(narrow, gate.rows(tag))) for tag in range(2, CREDITS + 1)]
        for each in (first, *others):
            each.close()  # as the collector does
    until(lambda: narrow.statistics().requests.cancelled == len(others))


async def _begin(client: penstock.Engine, rows: Any) -> Coroutine[Any, Any, Any]:
    """A call that has come to where it waits for its answer."""
    call = client.predict_async(rows)
    call.send(None)
    return call


def test_a_deadline_passes_while_others_have_all_slots(narrow: penstock.Engine, gate: Gate) -> None:
    async def all_of_them() -> None:
        tasks = await _fill(narrow.client, gate, 60)
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(narrow.predict_async(gate.rows(99), deadline=0.2), 20)
        await asyncio.wait_for(asyncio.to_thread(gate.open), 20)  # the loop's threads are free
        await asyncio.wait_for(asyncio.gather(*tasks), 40)

    asyncio.run(all_of_them())
    assert 99 not in gate.order


def test_those_who_wait_for_a_slot_get_it_in_turn(narrow: penstock.Engine, gate: Gate) -> None:
    async def all_of_them() -> None:
        tasks = await _fill(narrow.client, gate, 20)
        await asyncio.to_thread(gate.open)
        await asyncio.wait_for(asyncio.gather(*tasks), 40)

    asyncio.run(all_of_them())
    assert gate.order == list(range(CREDITS + 20))


def test_a_task_that_is_cancelled_leaves_the_line(narrow: penstock.Engine, gate: Gate) -> None:
    async def all_of_them() -> None:
        tasks = await _fill(narrow.client, gate, 6)
        for task in tasks[CREDITS : CREDITS + 3]:  # the first of the line, too
            task.cancel()
        await asyncio.to_thread(gate.open)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 40)

    asyncio.run(all_of_them())
    assert gate.order == [*range(CREDITS), *range(CREDITS + 3, CREDITS + 6)]


def test_several_loops_use_one_client(narrow: penstock.Engine, gate: Gate) -> None:
    async def some(first: int) -> None:
        calls = (narrow.predict_async(gate.rows(first + n)) for n in range(10))
        await asyncio.wait_for(asyncio.gather(*calls), 40)

    threads = [threading.Thread(target=asyncio.run, args=(some(100 * n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    gate.wait_started()
    gate.open()
    for thread in threads:
        thread.join(40)
    assert sorted(gate.order) == sorted(100 * n + m for n in range(3) for m in range(10))
    asyncio.run(some(500))  # closed loops are forgotten
    assert len(narrow.client._lines._lines) == 1


def test_those_in_line_are_told_when_the_engine_ends(narrow: penstock.Engine, gate: Gate) -> None:
    client = penstock.connect(narrow.name, wait=0.2)

    async def all_of_them() -> list[Any]:
        tasks = await _fill(client, gate, 40)
        await asyncio.to_thread(narrow.close, 0)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 40)

    assert {type(error) for error in asyncio.run(all_of_them())} == {EngineClosed}
    client.close()


def test_a_deadline_passes_while_there_is_no_engine(narrow: penstock.Engine) -> None:
    client = penstock.Client(narrow.address, wait=30)
    narrow.close()

    async def many() -> list[Any]:
        calls = (client.predict_async(np.ones(1), deadline=0.3) for _ in range(50))
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)

    assert {type(error) for error in asyncio.run(many())} == {DeadlineExceeded}
    client.close()


@pytest.mark.parametrize("first", ["tell", "open"])
def test_a_latch_tells_whoever_does_not_wait(first: str) -> None:
    latch = Latch()
    told: list[int] = []
    if first == "tell":
        latch.tell(lambda: told.append(1))
        assert not told
    latch.open()
    if first == "open":
        latch.tell(lambda: told.append(1))
    assert told == [1]
