"""Engines on paper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.room import Room, believed_segments


@pytest.fixture
def room() -> Iterator[Room]:
    """An engine with one worker, loaded; at its end everybody leaves and nothing stays open."""
    with believed_segments():
        made = Room()
        made.load()
        yield made
        made.leave()


@pytest.fixture
def pair_room() -> Iterator[Room]:
    """The same with two workers."""
    with believed_segments():
        made = Room(workers=2)
        made.load()
        yield made
        made.leave()
