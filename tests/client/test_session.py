"""Which requests travel alone, which together, and which as a series."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.client.session import Session
from penstock.errors import Overloaded
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.channel import Flooded
from tests.client.conftest import model
from tests.conditions import until

_LAYOUT = 4
_SUBMIT = 5


def _messages(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each message to the engine carries, from now on."""
    seen: list[int] = []
    send = session.channel.send

    def watched(data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        if data[0] == _SUBMIT:
            seen.append(sum(m.SubmitItem(*item).requests for item in wire.decode(data).items))
        send(data, descriptors)

    monkeypatch.setattr(session.channel, "send", watched)
    return seen


def test_one_at_a_time_travels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.Engine(model("doubled")) as engine, penstock.connect(engine.address) as client:
        client.predict(np.ones(1))
        seen = _messages(client._session(), monkeypatch)
        for number in range(1, 4):
            answer = client.submit(np.ones(1))
            assert seen == [1] * number  # nobody waits for it yet
            answer.result()


def test_as_many_as_were_answered_together_travel_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with penstock.Engine(model("doubled")) as engine, penstock.connect(engine.address) as client:
        client.predict(np.ones(1))
        session = client._session()
        taken: list[int] = []
        free = session.free

        def watched(pieces: list[penstock.client.call.Piece]) -> None:
            free(pieces)
            taken.append(len(pieces))

        monkeypatch.setattr(session, "free", watched)
        seen = _messages(session, monkeypatch)

        def four_travel_together() -> bool:  # unless half a millisecond passes between two
            together = taken[-1:] == [4]
            seen.clear()
            for answer in [client.submit(np.ones(1)) for _ in range(4)]:
                assert answer.result().tolist() == [2]
            return together and seen == [4]

        until(four_travel_together)


def test_what_was_gathered_leaves_though_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.Engine(model("doubled")) as engine, penstock.connect(engine.address) as client:
        client.predict(np.ones(1))
        session = client._session()
        session._likely = 8
        answer = client.submit(np.ones(1))
        until(answer.done)
        assert answer.result().tolist() == [2]


def test_callers_who_always_wait_in_time_need_no_short_timer_and_are_not_forgotten() -> None:
    with penstock.Engine(model("doubled")) as engine, penstock.connect(engine.address) as client:
        client.predict(np.ones(1))
        session = client._session()

        def gathered() -> penstock.client.answer.Answer:
            session._likely = 8
            return client.submit(np.ones(1))

        def trusted() -> bool:
            assert gathered().result().tolist() == [2]
            return session.reader._prompt >= 32

        until(trusted)
        answer = gathered()
        assert not session.reader._send_timer._running
        until(answer.done)  # nobody waits for it: the longer timer sees to that
        assert answer.result().tolist() == [2]
        assert session.reader._prompt == 0
        answer = gathered()
        assert session.reader._send_timer._running or answer.done()
        answer.result()


def test_what_cannot_be_announced_gives_its_slot_and_credit_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        penstock.Engine(model("doubled"), client_requests=3) as engine,
        penstock.connect(engine.address) as client,
    ):
        client.predict(np.ones(1))
        channel = client._session().channel
        send = channel.send

        def full(data: bytes, descriptors: tuple[int, ...] = ()) -> None:
            if data[0] == _LAYOUT:
                raise Flooded("a test says so")
            send(data, descriptors)

        with monkeypatch.context() as patched:
            patched.setattr(channel, "send", full)
            for width in range(2, 6):
                with pytest.raises(Overloaded, match="does not read: a test says so"):
                    client.submit(np.ones((1, width)), deadline=20)
        assert client.predict(np.ones(1), deadline=20).tolist() == [2]
