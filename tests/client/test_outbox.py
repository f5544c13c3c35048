"""What becomes a series, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.call import Call, Piece
from penstock.client.outbox import Outbox
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.arena import Arena, Slot
from tests.client.conftest import model

_SLOT = 1024


def _arena() -> Arena[None]:
    return Arena(1 << 24, lambda number, size: None, lambda number, memory: None)


def _piece(number: int, slot: Slot[Any], **changes: Any) -> Piece:
    kind: Any = None
    values = {"rows": 1, "deadline": 0, "priority": 0, "caller": 0, "input_bytes": 64} | changes
    call = Call(kind, values["rows"], values["deadline"], values["priority"], values["caller"])
    piece = Piece(call, 0, values["rows"], slot, values["input_bytes"])
    piece.number = number
    return piece


def _sent(outbox: Outbox) -> list[m.SubmitItem]:
    items = [m.SubmitItem(*item) for item in wire.decode(outbox.take()[0]).items]
    return items


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12),  # which slot
            st.sampled_from([1, 1, 1, 1, 2]),  # rows
            st.sampled_from([0, 0, 0, 77]),  # deadline
            st.sampled_from([0, 0, 0, 1]),  # priority
            st.sampled_from([64, 64, 64, 128]),  # bytes of input
            st.sampled_from([1, 1, 1, 2]),  # layout
        ),
        max_size=20,
    )
)
def test_every_request_is_sent_as_it_was_made(made: list[tuple[int, ...]]) -> None:
    """Whatever is joined: taken apart again, it is the same requests in the same order."""
    arena = _arena()
    slots = [arena.lease(_SLOT) for _ in range(13)]
    outbox = Outbox()
    wanted = []
    for number, (which, rows, deadline, priority, input_bytes, layout) in enumerate(made, 1):
        slot = slots[which]
        assert slot is not None
        changes = {"rows": rows, "deadline": deadline, "priority": priority}
        outbox.add(_piece(number, slot, input_bytes=input_bytes, **changes), layout)
        place = (slot.block.number, layout, slot.offset, slot.size, input_bytes)
        wanted.append((number, *place, rows, priority, 0, deadline))
    assert outbox.requests == len(made)
    got = []
    for item in _sent(outbox):
        assert item.requests == 1 or (item.rows == 1 and not item.deadline)
        for n in range(item.requests):
            request, segment, layout, offset, *rest = item[:-1]
            got.append((request + n, segment, layout, offset + n * item.length, *rest))
    assert got == wanted
    assert outbox.requests == 0


def test_neighbours_are_one_item() -> None:
    arena, outbox = _arena(), Outbox()
    for number in range(1, 9):
        outbox.add(_piece(number, arena.lease(_SLOT)), 3)  # type: ignore[arg-type]
    (item,) = _sent(outbox)
    assert (item.request, item.layout, item.offset, item.rows, item.requests) == (1, 3, 0, 1, 8)


@pytest.mark.parametrize(
    "changes", [{"rows": 2}, {"deadline": 5}, {"priority": 1}, {"caller": 9}, {"input_bytes": 128}]
)
def test_what_differs_is_an_item_of_its_own(changes: dict[str, int]) -> None:
    arena, outbox = _arena(), Outbox()
    for number in range(1, 6):
        slot = arena.lease(_SLOT)
        assert slot is not None
        outbox.add(_piece(number, slot, **(changes if number == 3 else {})), 1)
    assert [item.requests for item in _sent(outbox)] == [2, 1, 2]


def test_nothing_joins_what_was_sent() -> None:
    arena, outbox = _arena(), Outbox()
    outbox.add(_piece(1, arena.lease(_SLOT)), 1)  # type: ignore[arg-type]
    assert [item.request for item in _sent(outbox)] == [1]
    outbox.add(_piece(2, arena.lease(_SLOT)), 1)  # type: ignore[arg-type]
    assert [(item.request, item.requests) for item in _sent(outbox)] == [(2, 1)]


def test_a_series_has_an_end() -> None:
    arena, outbox = _arena(), Outbox()
    for number in range(1, 301):
        outbox.add(_piece(number, arena.lease(512)), 1)  # type: ignore[arg-type]
    assert [item.requests for item in _sent(outbox)] == [256, 44]


def test_what_could_not_be_sent_goes_first() -> None:
    arena, outbox = _arena(), Outbox()
    outbox.add(_piece(1, arena.lease(_SLOT)), 1)  # type: ignore[arg-type]
    outbox.add(_piece(2, arena.lease(_SLOT)), 1)  # type: ignore[arg-type]
    message, requests = outbox.take()
    assert outbox.requests == 0
    outbox.add(_piece(3, arena.lease(_SLOT)), 1)  # type: ignore[arg-type]
    outbox.give_back(message, requests)
    assert outbox.requests == 3
    assert [(item.request, item.requests) for item in _sent(outbox)] == [(1, 2), (3, 1)]


def test_a_series_is_answered_request_by_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through an engine: some of them raise, and one is let go of."""
    with penstock.Engine(model("picky")) as engine, penstock.connect(engine.address) as client:
        client.predict(np.ones(1))
        session = client._session()
        series: list[int] = []
        send = session.channel.send

        def watched(data: bytes, descriptors: tuple[int, ...] = ()) -> None:
            record = wire.decode(data)
            if isinstance(record, m.Submit):
                series.extend(m.SubmitItem(*item).requests for item in record.items)
            send(data, descriptors)

        monkeypatch.setattr(session.channel, "send", watched)
        values = [1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0, 8.0]
        session._likely = len(values)  # as if as many answers had come together
        answers = [client.submit(np.full(1, value)) for value in values]
        gone = answers.pop(5)
        gone.cancel()
        del values[5]
        for value, answer in zip(values, answers, strict=True):
            if value < 0:
                with pytest.raises(penstock.errors.ModelError, match="negative"):
                    answer.result()
            else:
                assert answer.result().tolist() == [2 * value]
        assert gone.cancelled()
        assert max(series) > 1
        assert sum(series) == 8
