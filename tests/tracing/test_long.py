"""A trace of more requests than fit one answer comes in pieces, and is whole."""

from __future__ import annotations

import json

import numpy as np

import penstock
from penstock.transport import messages as m

ASKED = 12_000


def test_all_of_many_requests() -> None:
    with penstock.Engine("tests.models.functions:doubled") as engine:
        client = penstock.connect(str(engine.client.address))
        session = client._session()
        session.ask(30, m.ASK_TRACE_START)
        for _ in engine.map(np.ones((ASKED, 2), "float32"), window=256):
            pass
        pieces = [json.loads(session.ask(30, m.ASK_TRACE))]
        while pieces[-1]["more"]:
            pieces.append(json.loads(session.ask(30, m.ASK_TRACE)))
        client.close()
    assert len(pieces) > 2
    assert len({(piece["since"], piece["until"]) for piece in pieces}) == 1
    batches = [batch for piece in pieces for batch in piece["batches"]]
    numbers = [number for batch in batches for _, number, _, _ in batch["requests"]]
    assert sorted(numbers) == sorted(set(numbers))
    assert len(numbers) == ASKED
