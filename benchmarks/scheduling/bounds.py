"""What no policy can beat, not even one that knows the future.

**Open loop.** Fix a latency x and ask how many requests any schedule can answer within x. Their
batches are small enough to be gathered and run in x less four messages, and cost at least
c = min busy(b) / b of a worker's time a row, the least over the sizes b that are. Now forget the
rest (that batches are whole, that only full ones are so cheap, slowdowns): a server that works off
single rows, each in c / workers, from the moment that a row can be there until two messages before
x is over, can do whatever a real device can. Rows are sent and due in the same order; then taking
each in turn if it can still be in time answers as many as possible, because the k-th row that this
takes is sent and done no later than the k-th of any other schedule. Hence the least x at which a
share q can be answered is a lower bound of the q-quantile under every policy (`latency`), and the
share that can be answered within the deadline an upper bound of goodput (`goodput`). Neither is
ever reached: in truth nobody can join a batch that runs.

**Closed loop.** Let n(b) be the batches of b rows in a long time T. The device can be busy for T:
Σ n(b) busy(b) ≤ T · workers. A row of such a batch cannot be back before its client's think time,
four messages, its gather and its run have passed, and the N rows that are under way spend N · T in
all (Little's law): Σ n(b) b cycle(b) ≤ N · T. The most rows under these two constraints bound the
rate from above; N divided by it is the best possible cycle. The optimum of a linear program
with two constraints has at most two sizes, so all pairs are tried (`cycle`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.scheduling import arrivals
from benchmarks.scheduling.devices import MESSAGE, Device


def goodput(device: Device, sent: Sequence[int], deadline: int) -> float:
    """The greatest share of requests that can be answered within the deadline."""
    return _in_time(device, sent, deadline) / len(sent)


def latency(device: Device, sent: Sequence[int], share: float, deadline: int) -> int:
    """The least latency within which that share can be answered; the deadline if none is."""
    low, high = device.single, deadline
    needed = share * len(sent)
    if _in_time(device, sent, low) >= needed:
        return low
    while high - low > low // 500:
        middle = (low + high) // 2
        if _in_time(device, sent, middle) >= needed:
            high = middle
        else:
            low = middle
    return low


def cycle(device: Device, loop: arrivals.Loop) -> float:
    """The least mean time, in ns, from one answer to the next in each of a loop's places."""
    options: list[tuple[float, float, float]] = []  # rows, device time, places' time; a batch
    fixed = loop.think / 2 + 4 * MESSAGE
    for rows in range(1, min(loop.total, device.max_batch) + 1):
        busy = device.busy[rows] / device.workers
        spent = rows * (fixed + device.gather[rows] + device.run[rows])
        options.append((rows, busy, spent))
    best = max(_alone(option, loop.total) for option in options)
    for one, other in itertools.combinations(options, 2):
        best = max(best, _together(one, other, loop.total))
    return loop.total / best


def _in_time(device: Device, sent: Sequence[int], within: int) -> int:
    """How many requests the relaxed server answers within that latency."""
    window = within - 4 * MESSAGE
    costs = [
        device.busy[rows] / rows
        for rows in range(1, device.max_batch + 1)
        if device.gather[rows] + device.run[rows] <= window
    ]
    if not costs:
        return 0
    cost = min(costs) / device.workers
    if device.gathers_beside:
        window -= device.gather[1]
    free = 0.0
    taken = 0
    for time in sent:
        end = (free if free > time else time) + cost
        if end <= time + window:
            free = end
            taken += 1
    return taken


def _alone(option: tuple[float, float, float], places: int) -> float:
    """Rows a nanosecond when all batches are of this size."""
    rows, busy, spent = option
    return rows * min(1 / busy, places / spent)


def _together(
    one: tuple[float, float, float], other: tuple[float, float, float], places: int
) -> float:
    """Rows a nanosecond when two sizes use up both the device and the places."""
    (r1, b1, s1), (r2, b2, s2) = one, other
    determinant = b1 * s2 - b2 * s1
    if determinant == 0:
        return 0.0
    n1 = (s2 - b2 * places) / determinant
    n2 = (b1 * places - s1) / determinant
    return r1 * n1 + r2 * n2 if n1 >= 0 and n2 >= 0 else 0.0
