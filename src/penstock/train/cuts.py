"""Where a row of calls is best cut, by bytes alone: for recomputing, and for stages.

`cheapest`: what is kept at the cuts, with the insides of the largest segment, is least.
`balanced`: so many parts, the costliest of which costs least.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

_LIMITS_TRIED = 48


def cheapest(kept: Sequence[int], given: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Which positions to cut at, so that what is kept and the largest segment are small together.

    `kept` are the bytes that cross each position, `given` those of each call.
    """
    edges = [0, *positions, len(given)]
    costs = [0, *kept, 0]
    total = list(itertools.accumulate(given, initial=0))
    whole = total[-1]
    smallest = max(given, default=0)
    best, chosen = whole, list[int]()
    for step in range(_LIMITS_TRIED):
        limit = smallest + (whole - smallest) * (step + 1) // _LIMITS_TRIED
        cuts = _fewest_bytes(edges, costs, total, limit)
        if cuts is None:
            continue
        inside = max(
            total[end] - total[start]
            for start, end in itertools.pairwise([0, *(edges[cut] for cut in cuts), len(given)])
        )
        needed = sum(costs[cut] for cut in cuts) + inside
        if needed < best:
            best, chosen = needed, [edges[cut] for cut in cuts]
    return chosen


def balanced(costs: Sequence[int], positions: Sequence[int], parts: int) -> list[int]:
    """Which positions to cut at for so many parts, the costliest of which costs least."""
    edges = [0, *positions, len(costs)]
    total = list(itertools.accumulate(costs, initial=0))
    reached = [total[edge] for edge in edges]  # the costliest of one part, up to each edge
    before: list[list[int]] = []
    for _ in range(parts - 1):
        choices = [
            min(
                (max(reached[start], total[edges[end]] - total[edges[start]]), start)
                for start in range(end)
            )
            if end
            else (0, 0)
            for end in range(len(edges))
        ]
        reached = [cost for cost, _ in choices]
        before.append([start for _, start in choices])
    cuts, edge = list[int](), len(edges) - 1
    for starts in reversed(before):
        edge = starts[edge]
        cuts.append(edges[edge])
    return sorted(set(cuts) - {0})


def _fewest_bytes(
    edges: Sequence[int], costs: Sequence[int], total: Sequence[int], limit: int
) -> list[int] | None:
    """Cuts that keep least with no segment above a limit; None where there are none."""
    best: list[int | None] = [0] + [None] * (len(edges) - 1)
    before = [0] * len(edges)
    for end in range(1, len(edges)):
        for start in range(end - 1, -1, -1):
            if total[edges[end]] - total[edges[start]] > limit:
                break
            reached = best[start]
            if reached is None:
                continue
            cost = reached + costs[end]
            known = best[end]
            if known is None or cost < known:
                best[end], before[end] = cost, start
    if best[-1] is None:
        return None
    cuts, edge = list[int](), before[-1]
    while edge:
        cuts.append(edge)
        edge = before[edge]
    return cuts[::-1]
