"""Who was just answered and is expected back: what is learnt of them, and what is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling import returns
from penstock.scheduling.returns import Returns

US = 1_000
MS = 1_000_000
SECOND = 1_000 * MS
FIRST_PATIENCE = returns._FIRST_PATIENCE


def _rounds(made: Returns, takes: int, *, count: int = 50, client: int = 1, now: int = 0) -> int:
    """A client in a loop: answered, and back after so long; returns the time at its end."""
    for _ in range(count):
        made.answered(client, 1, now)
        now += takes
        made.came(client, 1, now)
    return now


# ── who is expected ────────────────────────────────────────────────────────────────────────────


def test_nobody_is_expected_at_first() -> None:
    made = Returns()
    assert made.expected(5) == (0, 5)
    assert made.chance == 1.0
    assert not made.steady
    assert made.turnaround == FIRST_PATIENCE


def test_whoever_was_answered_is_expected_until_patience_ends() -> None:
    made = Returns()
    made.answered(1, 3, 100)
    made.answered(2, 2, 150)
    assert made.expected(200) == (5, 150 + FIRST_PATIENCE)  # until the last of them
    made.came(1, 3, 250)
    turnaround = made.turnaround
    assert made.expected(300) == (2, 150 + turnaround)


def test_rows_come_back_in_pieces() -> None:
    made = Returns()
    made.answered(1, 5, 100)
    made.came(1, 2, 110)
    assert made.expected(110)[0] == 3
    made.came(1, 3, 120)
    assert made.expected(120) == (0, 120)


def test_more_rows_than_were_answered_are_no_debt() -> None:
    made = Returns()
    made.answered(1, 2, 100)
    made.came(1, 9, 110)
    assert made.expected(110) == (0, 110)
    made.answered(2, 1, 120)
    assert made.expected(120)[0] == 1


def test_answers_in_a_row_are_expected_back_together() -> None:
    made = Returns()
    made.answered(1, 2, 100)
    made.answered(1, 3, 200)
    assert made.expected(200) == (5, 200 + FIRST_PATIENCE)
    assert made.expected(100 + FIRST_PATIENCE + 1)[0] == 5  # from the last answer on


def test_whoever_comes_unexpectedly_changes_nothing() -> None:
    made = Returns()
    made.came(1, 3, 100)
    assert made.expected(100) == (0, 100)
    assert not made.steady


def test_patience_ends_for_each_in_turn() -> None:
    made = Returns()
    made.answered(1, 1, 100)
    made.answered(2, 2, 100 + FIRST_PATIENCE)
    assert made.expected(100 + FIRST_PATIENCE)[0] == 3
    assert made.expected(101 + FIRST_PATIENCE)[0] == 2
    assert made.expected(101 + 2 * FIRST_PATIENCE)[0] == 0


# ── how long it takes ──────────────────────────────────────────────────────────────────────────


def test_the_turnaround_is_learnt() -> None:
    made = Returns()
    _rounds(made, 200 * US)
    assert 200 * US <= made.turnaround <= 220 * US
    assert made.steady


def test_the_turnaround_covers_nearly_all_who_come_back() -> None:
    made = Returns()
    now = 0
    for number in range(200):
        now = _rounds(made, (100 + 50 * (number % 5)) * US, count=1, now=now)
    assert made.turnaround >= 300 * US
    assert made.turnaround < 500 * US


def test_a_change_is_learnt() -> None:
    made = Returns()
    now = _rounds(made, 200 * US)
    _rounds(made, 2 * MS, now=now)
    assert 1.9 * MS <= made.turnaround <= 3 * MS


def test_a_client_that_sleeps_for_hours_teaches_no_more_than_one_that_is_slow() -> None:
    hours, slow = Returns(), Returns()
    for made, takes in ((hours, 5_000 * SECOND), (slow, returns._LONGEST)):
        _rounds(made, 200 * US)
        made.answered(1, 1, SECOND)
        made.came(1, 1, SECOND + takes)
    assert hours.turnaround == slow.turnaround


def test_one_who_is_back_at_once_is_seen() -> None:
    made = Returns()
    _rounds(made, 0)
    assert made.steady
    assert 0 < made.turnaround < 10 * US


# ── who does not come back ─────────────────────────────────────────────────────────────────────


def test_the_chance_falls_with_those_who_stay_away_and_rises_with_those_who_come() -> None:
    made = Returns()
    now = SECOND
    for client in range(100, 130):
        made.answered(client, 1, now)
        now += 10 * MS
        made.expected(now)
    assert made.chance < 0.1
    assert not made.steady
    _rounds(made, 100 * US, now=now)
    assert made.chance > 0.9
    assert made.steady


def test_a_client_that_did_not_come_in_time_is_not_waited_for_the_next_time() -> None:
    made = Returns()
    now = _rounds(made, 100 * US)
    made.answered(7, 1, now)
    assert made.expected(now)[0] == 1
    assert made.expected(now + MS)[0] == 0
    now += SECOND
    made.came(7, 1, now)  # much too late
    made.answered(7, 1, now)
    assert made.expected(now) == (0, now)
    made.answered(8, 1, now)
    assert made.expected(now)[0] == 1  # the others still are


def test_a_slow_client_costs_the_others_no_chance() -> None:
    made = Returns()
    now = _rounds(made, 100 * US)
    made.answered(7, 1, now)
    made.expected(now + SECOND)
    chance = made.chance
    for _ in range(20):
        now += SECOND
        made.answered(7, 1, now)
        assert made.expected(now + SECOND // 2)[0] == 0
    assert made.chance == chance


def test_nobody_is_waited_for_longer_because_of_a_slow_client() -> None:
    made = Returns()
    now = _rounds(made, 100 * US)
    made.answered(7, 1, now)
    made.expected(now + SECOND)
    now += 2 * SECOND
    made.answered(8, 1, now)
    made.answered(7, 1, now + 50 * US)
    assert made.expected(now + 50 * US) == (1, now + made.turnaround)


def test_a_slow_client_that_comes_in_time_is_waited_for_again() -> None:
    made = Returns()
    now = _rounds(made, 100 * US)
    made.answered(7, 2, now)
    made.expected(now + SECOND)
    now += 2 * SECOND
    made.answered(7, 2, now)
    made.came(7, 1, now + 100 * US)  # half of it
    made.answered(8, 1, now + 100 * US)
    assert made.expected(now + 100 * US)[0] == 1
    made.came(7, 1, now + 100 * US)
    made.answered(7, 2, now + 200 * US)
    assert made.expected(now + 200 * US)[0] == 3


def test_one_that_comes_a_little_late_is_learnt_and_forgiven() -> None:
    """Patience was too short for it, and now is not."""
    made = Returns()
    now = _rounds(made, 100 * US, count=20)
    late = made.turnaround + 2 * US
    made.answered(7, 1, now)
    assert made.expected(now + late)[0] == 0
    before = made.turnaround
    made.came(7, 1, now + late)
    assert made.turnaround > before
    made.answered(7, 1, now + SECOND)
    assert made.expected(now + SECOND)[0] == 1


def test_clients_that_come_late_are_still_learnt_from() -> None:
    """Else patience that is too short once would stay too short for ever."""
    made = Returns()
    now = _rounds(made, 100 * US)
    for client in range(10, 200):
        made.answered(client, 1, now)
        made.expected(now + 5 * MS)
        made.came(client, 1, now + 5 * MS)
        now += 10 * MS
    assert made.turnaround >= 5 * MS


# ── memory ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asked", [False, True])
def test_clients_that_never_come_back_do_not_pile_up(asked: bool) -> None:
    """Whether or not anybody asks whom to expect: a lane whose batches are full never does."""
    made = Returns()
    for client in range(30_000):
        made.answered(client, 1, client * 2 * MS)
        if asked:
            made.expected(client * 2 * MS)
    kept = len(made._away) + len(made._late) + len(made._slow)
    assert kept <= 4 * returns._MOST
    now = 30_000 * 2 * MS
    expected, _ = made.expected(now + MS)
    assert expected <= 1


def test_whom_was_forgotten_may_come_all_the_same() -> None:
    made = Returns()
    for client in range(30_000):
        made.answered(client, 1, client * 2 * MS)
        made.expected(client * 2 * MS)
    now = 30_000 * 2 * MS
    for client in range(30_000):
        made.came(client, 1, now)
        assert made.away >= 0
    assert made.expected(now) == (0, now)


def test_a_slow_client_is_expected_again_when_it_is_forgotten_that_it_was_slow() -> None:
    made, slow, now = Returns(), -1, SECOND
    made.answered(slow, 1, now)
    made.expected(now + SECOND)
    expected = set()
    for client in range(10_000):
        now += 2 * SECOND
        made.answered(client, 1, now)
        made.answered(slow, 1, now + MS)
        expected.add(made.expected(now + FIRST_PATIENCE + 1)[0])
        made.expected(now + SECOND)  # it does not come, again
    assert expected == {0, 1}


# ── everything at once ─────────────────────────────────────────────────────────────────────────


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answered", "came", "expected"]),
            st.integers(1, 4),
            st.integers(0, 5),
            st.integers(0, 3 * MS),
        ),
        max_size=80,
    )
)
def test_what_is_expected_is_what_was_answered_lately(
    events: list[tuple[str, int, int, int]],
) -> None:
    made = Returns()
    now = SECOND
    owed = dict.fromkeys(range(1, 5), 0)  # rows of each client that were answered and not come back
    for name, client, rows, passes in events:
        now += passes
        if name == "answered":
            made.answered(client, rows, now)
            owed[client] += rows
        elif name == "came":
            made.came(client, rows, now)
            owed[client] = max(owed[client] - rows, 0)
        else:
            expected, until = made.expected(now)
            assert until >= now
            assert until <= now + made.turnaround
            assert expected <= sum(owed.values())
        assert 0 <= made.away <= sum(owed.values())
        away = [rows for who, (rows, _) in made._away.items() if who not in made._slow]
        assert made.away == sum(away)
        assert 0.0 <= made.chance <= 1.0
        assert made.turnaround > 0
    assert made.expected(now + SECOND)[0] == 0
    assert made.away == 0
