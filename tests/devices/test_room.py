"""What is left of a card: never more than holders could still take."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from penstock.devices.cards import Card
from penstock.devices.room import Promise, reckon

TOTAL = 1000
_FIRST = 1 << 24  # no process has such a number


@st.composite
def situations(draw):
    """A card, its promises, and what foreigners and holders have taken."""
    foreign = draw(st.integers(0, 300))
    promises, processes, taken = [], [(_FIRST - 1, foreign)], {}
    for number in range(draw(st.integers(0, 4))):
        pid = _FIRST + draw(st.integers(0, number))  # some hold several
        size, told = draw(st.integers(1, 300)), draw(st.booleans())
        used = draw(st.integers(0, size))
        promises.append(Promise("GPU-a", size, pid, "test", used if told else None))
        taken.setdefault(pid, []).append(used)
    silent = draw(st.sets(st.sampled_from(sorted(taken)))) if taken else set()
    for pid, uses in taken.items():
        processes.append((pid, None if pid in silent else sum(uses)))
    used = foreign + sum(map(sum, taken.values()))
    card = Card("GPU-a", "Fake", TOTAL, max(0, TOTAL - used), used, 0, tuple(processes))
    return card, promises, foreign, silent


@given(situations())
def test_what_is_left_stays_free_when_every_promise_is_used_up(situation) -> None:
    card, promises, foreign, silent = situation
    (room,) = reckon([card], promises)
    exact = TOTAL - foreign - sum(promise.size for promise in promises)
    assert room.left <= max(0, exact)
    if not silent and exact > 0:
        assert room.left == exact


def test_promises_of_other_cards_do_not_count() -> None:
    card = Card("GPU-a", "Fake", TOTAL, TOTAL, 0, 0)
    (room,) = reckon([card], [Promise("GPU-b", 400, _FIRST, "test")])
    assert room.left == TOTAL
    assert room.promises == ()


def test_what_children_use_counts_for_the_nearest_holder() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        card = Card("GPU-a", "Fake", TOTAL, 700, 300, 0, ((child.pid, 300),))
        mine = Promise("GPU-a", 400, os.getpid(), "parent")
        (room,) = reckon([card], [mine])
        assert room.left == 600
        (room,) = reckon([card], [mine, Promise("GPU-a", 300, child.pid, "child")])
        assert room.left == 300  # the child's use is its own: nothing of the parent's is taken
        child.communicate(b"\n")


def test_the_text_has_the_numbers() -> None:
    card = Card("GPU-a", "Fake A", 16 << 30, 12 << 30, 4 << 30, 0)
    (room,) = reckon([card], [Promise("GPU-a", 5 << 30, _FIRST, "train.py")])
    assert str(room) == (
        "gpu:0 (Fake A, GPU-a): 7.0 GB left of 16.0 GB, 12.0 GB unused, "
        f"5.0 GB promised to process {_FIRST} (train.py)"
    )
