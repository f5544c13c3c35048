"""What happens to every policy alike: when requests come, from whom, how slow each batch is.

All of it is drawn before a run, from the seed alone, so that runs of different policies with one
seed are pairs. Times are nanoseconds; an arrival is when the client sends.

- `poisson`: requests independent of each other
- `bursty`: Poisson at one of two rates, in turn for exponential times (a Markov-modulated process):
  a third of the time 2.5 times the mean rate, else a quarter of it
- `Loop`: clients that send their next request when an answer has come, after a short `think` time,
  between nothing and a most
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.scheduling.devices import US, Device, S

CLIENTS = 16  # of an open loop
_BURST, _LULL = 2.5, 0.25  # times the mean rate
_BURST_SHARE = 1 / 3
_BURST_LENGTH = 3  # times the latency of a single request
THINK = 100 * US
_SLOWER, _SLOWEST = 0.02, 0.2  # mean and greatest slowdown


def poisson(seed: int, rate: float, count: int) -> list[int]:
    """So many arrivals at so many a second."""
    gaps = _random(seed, 1).exponential(S / rate, count)
    return np.cumsum(gaps).astype(np.int64).tolist()


def bursty(seed: int, rate: float, count: int, single: int) -> list[int]:
    """The same mean rate, in bursts; `single` is the latency to which their length relates."""
    random = _random(seed, 2)
    burst = _BURST_LENGTH * single
    lull = burst * (1 - _BURST_SHARE) / _BURST_SHARE
    # Arrivals of a Poisson process at rate 1, bent by the integral of the changing rate.
    needed = np.cumsum(random.exponential(1.0, count))
    knots, heights = [0.0], [0.0]
    bursting = bool(random.random() < _BURST_SHARE)
    while heights[-1] < needed[-1]:
        length = random.exponential(burst if bursting else lull)
        knots.append(knots[-1] + length)
        heights.append(heights[-1] + length * rate / S * (_BURST if bursting else _LULL))
        bursting = not bursting
    return np.interp(needed, heights, knots).astype(np.int64).tolist()


def senders(seed: int, count: int) -> list[int]:
    """Which client of an open loop sent each request."""
    return _random(seed, 3).integers(0, CLIENTS, count).tolist()


@dataclass(frozen=True)
class Loop:
    """`clients` clients with `outstanding` requests each, that think for `think` at most."""

    clients: int
    outstanding: int
    think: int = THINK

    @property
    def total(self) -> int:
        """Requests under way, or about to be, at any time."""
        return self.clients * self.outstanding

    def thinks(self, seed: int) -> list[Iterator[int]]:
        """For each of the outstanding requests, how long its client takes to send the next."""
        table = _random(seed, 4).integers(0, self.think, (self.total, 512)).tolist()
        return [_cycle(row) for row in table]


def slowdowns(seed: int, device: Device) -> list[Iterator[float]]:
    """For each worker: by what factor, at least 1, its first, second … batch is slower."""
    random = _random(seed, 5)
    return [
        _cycle((1 + np.minimum(random.exponential(_SLOWER, 4096), _SLOWEST)).tolist())
        for _ in range(device.workers)
    ]


def _cycle(values: list) -> Iterator:
    while True:
        yield from values


def _random(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng((seed, purpose))
