"""Clients without a system: rings that turn for one load after the other, and end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.core import load
from benchmarks.core.load import Timing
from benchmarks.core.processes import Workspace
from benchmarks.core.systems.interface import Load
from benchmarks.core.systems.roster import NOTHING

_TIMING = Timing(warm_up=0.05, measure=0.2)


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    made = Workspace()
    yield made
    made.remove()


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_every_client_has_its_turn_in_one_load_after_the_other(
    clients: int, workspace: Workspace
) -> None:
    crowd = Load(clients, 3)
    with (
        NOTHING.serve({}, workspace) as endpoint,
        load.crowd(NOTHING, endpoint, crowd, workspace) as members,
    ):
        few = members.measure(_TIMING, 1)
        many = members.measure(_TIMING)
    assert (few.load, many.load) == (f"{clients}x1", f"{clients}x3")
    assert few.requests >= clients
    assert many.requests >= 3 * clients
