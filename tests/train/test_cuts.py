"""Cuts: compared with all that there are."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.train.cuts import balanced, cheapest


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), min_size=2, max_size=7))
def test_what_is_kept_and_the_largest_segment_are_small_together(calls: Any) -> None:
    kept, given = [one for one, _ in calls[1:]], [one for _, one in calls]
    positions = list(range(1, len(calls)))

    def needed(cuts: Any) -> int:
        edges = [0, *cuts, len(given)]
        inside = max(sum(given[a:b]) for a, b in itertools.pairwise(edges))
        return sum(kept[cut - 1] for cut in cuts) + inside

    every = (cuts for n in range(len(calls)) for cuts in itertools.combinations(positions, n))
    best = min(map(needed, every))
    found = needed(cheapest(kept, given, positions))
    assert best <= found <= best + sum(given) // 48 + 1  # limits are tried in so many steps


def test_the_costliest_part_costs_least() -> None:
    costs = [5, 1, 1, 9, 2, 2, 2, 4, 4, 1]
    everywhere = range(1, len(costs))
    for parts in (1, 2, 3, 4):

        def costliest(cuts: Any) -> int:
            edges = [0, *cuts, len(costs)]
            return max(sum(costs[a:b]) for a, b in itertools.pairwise(edges))

        best = min(map(costliest, itertools.combinations(everywhere, parts - 1)))
        found = balanced(costs, list(everywhere), parts)
        assert len(found) == parts - 1
        assert costliest(found) == best
    assert balanced(costs, [3, 4], 2) == [4]
