"""Which mode is taken: played by fake modes, each with its answers and its times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.model.choice import Choice, Chooser
from penstock.model.samples import Samples

Array = np.ndarray[Any, Any]
ALL = ("function", "frozen", "frozen-xla", "xla")


class Modes:
    """Modes that double numbers, each in its own time, on a clock that only they move."""

    def __init__(self, **seconds: Any) -> None:
        self.seconds = {mode.replace("_", "-"): times for mode, times in seconds.items()}
        self.compiling: dict[str, float] = {}
        self.wrong: dict[str, Any] = {}
        self.cold: dict[str, int] = {}  # its first runs of one row take three times as long
        self.now = 0.0
        self.runs: list[tuple[str, int]] = []

    def run(self, mode: str, arrays: list[Array]) -> list[Array]:
        size = len(arrays[0])
        if (mode, size) not in self.runs:
            self.now += self.compiling.get(mode, 0.0)
        self.runs.append((mode, size))
        times = self.seconds[mode]
        if isinstance(times, Exception):
            raise times
        seconds = times[0] if size == 1 else times[1]
        cold = size == 1 and self.runs.count((mode, size)) <= self.cold.get(mode, 0)
        self.now += 3 * seconds if cold else seconds
        return [self.wrong.get(mode, lambda x: x * 2)(arrays[0])]

    def choose(self, *modes: str, tolerance: float = 1e-3, budget: float = 20.0) -> Choice:
        chooser = Chooser(
            self.run,
            lambda arrays: [arrays[0] * 2],
            Samples([np.arange(6, dtype=np.float32).reshape(3, 2)]),
            (1, 8),
            tolerance,
            budget,
            lambda: self.now,
        )
        return chooser.choose(modes or ALL)


def test_the_fastest_is_taken_and_all_times_are_told() -> None:
    modes = Modes(function=(0.02, 0.08), frozen=(0.01, 0.05), frozen_xla=(0.005, 0.01))
    choice = modes.choose("function", "frozen", "frozen-xla")
    assert choice.mode == "frozen-xla"
    assert choice.modes["function"] == {"1": pytest.approx(2e7), "8": pytest.approx(8e7)}
    assert choice.modes["frozen-xla"] == {"1": pytest.approx(5e6), "8": pytest.approx(1e7)}


def test_latency_lost_must_be_won_in_throughput() -> None:
    slow_start = Modes(function=(0.010, 0.08), frozen=(0.015, 0.05))
    assert slow_start.choose("function", "frozen").mode == "frozen"  # 1.5 x against 1.6 x
    slower_start = Modes(function=(0.010, 0.08), frozen=(0.019, 0.05))
    assert slower_start.choose("function", "frozen").mode == "function"


def test_of_two_that_are_alike_the_one_with_less_to_compile_is_taken() -> None:
    modes = Modes(function=(0.01, 0.05), frozen=(0.01, 0.051), frozen_xla=(0.01, 0.049))
    assert modes.choose("function", "frozen", "frozen-xla").mode == "frozen"


def test_a_mode_whose_answers_differ_is_not_taken_however_fast() -> None:
    modes = Modes(function=(0.02, 0.08), frozen=(0.01, 0.05), frozen_xla=(0.001, 0.001))
    modes.wrong["frozen-xla"] = lambda x: x * 2 + 0.1
    choice = modes.choose("function", "frozen", "frozen-xla")
    assert choice.mode == "frozen"
    assert str(choice.modes["frozen-xla"]).startswith("wrong at 1 rows: the output differs")
    assert modes.choose("frozen-xla").mode == ""
    assert modes.choose("frozen-xla", tolerance=0.9).mode == "frozen-xla"
    assert modes.choose("function", "frozen", "frozen-xla", tolerance=0.9).mode == "frozen-xla"


def test_a_mode_that_is_wrong_only_in_large_batches_is_not_taken() -> None:
    modes = Modes(function=(0.02, 0.08), frozen=(0.01, 0.05))
    modes.wrong["frozen"] = lambda x: x * 2 if len(x) == 1 else x
    choice = modes.choose("function", "frozen")
    assert choice.mode == "function"
    assert str(choice.modes["frozen"]).startswith("wrong at 8 rows")


def test_a_mode_that_raises_is_not_taken() -> None:
    modes = Modes(function=(0.02, 0.08), frozen=ValueError("no constants"), xla=(0.01, 0.01))
    choice = modes.choose()
    assert choice.mode == "xla"
    assert choice.modes["frozen"] == "ValueError: no constants"
    assert "could not be frozen" in str(choice.modes["frozen-xla"])


def test_nothing_is_taken_when_nothing_is_right() -> None:
    modes = Modes(function=RuntimeError("a"), frozen=RuntimeError("b"))
    assert modes.choose("function", "frozen").mode == ""


def test_xla_is_tried_frozen_or_not_but_not_twice() -> None:
    modes = Modes(function=(0.02, 0.08), frozen=(0.01, 0.05), frozen_xla=(0.005, 0.01))
    choice = modes.choose()
    assert choice.mode == "frozen-xla"
    assert "not tried" in str(choice.modes["xla"])
    assert not [mode for mode, _ in modes.runs if mode == "xla"]


def test_what_is_twice_as_slow_at_the_small_size_is_not_tried_at_the_large_one() -> None:
    modes = Modes(function=(0.01, 0.05), frozen=(0.01, 0.05), frozen_xla=(0.02, 0.001))
    choice = modes.choose()
    assert choice.mode == "frozen"
    assert "slower: 20 ms for 1 rows" in str(choice.modes["frozen-xla"])
    assert "frozen-xla, with less to pass on, is slow" in str(choice.modes["xla"])
    assert ("frozen-xla", 8) not in modes.runs
    assert modes.runs.count(("frozen-xla", 1)) == 3  # the first, and two that are measured


def test_a_mode_is_not_given_up_for_its_first_few_calls() -> None:
    modes = Modes(function=(2e-5, 1e-3), frozen=(1e-5, 1e-3))
    modes.cold["frozen"] = 20
    assert modes.choose("function", "frozen").mode == "frozen"


def test_what_compiles_too_long_is_not_tried_any_further() -> None:
    modes = Modes(function=(0.01, 0.05), frozen=(0.01, 0.05), frozen_xla=(0.001, 0.001))
    modes.compiling["frozen-xla"] = 11.0
    choice = modes.choose(budget=20.0)
    assert choice.mode == "frozen"
    assert "compiling took 11.0 s for a batch of 1" in str(choice.modes["frozen-xla"])
    assert modes.now < 20
    assert modes.choose(budget=40.0).mode == "frozen-xla"


def test_when_the_time_is_used_up_nothing_more_is_tried() -> None:
    modes = Modes(function=(0.3, 10.0), frozen=(0.1, 0.5))
    choice = modes.choose("function", "frozen", budget=20.0)
    assert choice.mode == "function"
    assert choice.modes["frozen"] == "not tried: the time for trying was used up"


def test_xla_is_tried_where_frozen_xla_fails() -> None:
    modes = Modes(
        function=(0.02, 0.08),
        frozen=(0.01, 0.05),
        frozen_xla=RuntimeError("no program"),
        xla=(0.005, 0.01),
    )
    choice = modes.choose()
    assert choice.modes["frozen-xla"] == "RuntimeError: no program"
    assert choice.mode == "xla"


# ── in flight, as on GPUs ──────────────────────────────────────────────────────────────────────


class InFlight(Modes):
    """The same, where a call that follows another one takes less: `each` seconds by mode."""

    def __init__(self, each: dict[str, float], **seconds: Any) -> None:
        super().__init__(**seconds)
        self.each = each

    def pace(self, call: Any) -> float:
        call()
        return self.each[self.runs[-1][0]]

    def choose_so(self, *modes: str, budget: float = 20.0) -> Choice:
        chooser = Chooser(
            self.run,
            lambda arrays: [arrays[0] * 2],
            Samples([np.arange(6, dtype=np.float32).reshape(3, 2)]),
            (1, 8),
            1e-3,
            budget,
            lambda: self.now,
            self.pace,
        )
        return chooser.choose(modes or ("frozen", "frozen-xla", "function", "xla"))


def test_in_flight_throughput_decides_and_not_the_call_that_waits() -> None:
    modes = InFlight(
        {"frozen": 0.05, "function": 0.02}, function=(0.010, 0.09), frozen=(0.010, 0.08)
    )
    choice = modes.choose_so("frozen", "function")
    assert choice.mode == "function"
    assert choice.rates == {"frozen": pytest.approx(160), "function": pytest.approx(400)}
    assert choice.modes["function"] == {"1": pytest.approx(1e7), "8": pytest.approx(9e7)}


def test_in_flight_the_hopeless_are_not_tried_at_the_large_size() -> None:
    modes = InFlight(
        {"frozen-xla": 0.001},
        function=(0.010, 0.09),
        frozen=(0.007, 0.08),
        frozen_xla=(0.002, 0.01),
    )
    choice = modes.choose_so()
    assert choice.mode == "frozen-xla"
    assert {mode for mode, size in modes.runs if size == 8} == {"frozen-xla"}
    assert "slower: 10 ms for 1 rows" in str(choice.modes["function"])
    assert "not tried" in str(choice.modes["xla"])


def test_in_flight_when_the_fastest_is_wrong_in_large_batches_the_next_is_taken() -> None:
    modes = InFlight(
        {"frozen": 0.05, "frozen-xla": 0.001}, frozen=(0.009, 0.08), frozen_xla=(0.002, 0.01)
    )
    modes.wrong["frozen-xla"] = lambda x: x * 2 if len(x) == 1 else x
    choice = modes.choose_so("frozen", "frozen-xla")
    assert choice.mode == "frozen"
    assert str(choice.modes["frozen-xla"]).startswith("wrong at 8 rows")


def test_in_flight_without_freezing_xla_is_tried_and_time_is_bounded() -> None:
    modes = InFlight(
        {"xla": 0.001, "function": 0.01},
        frozen=ValueError("no constants"),
        function=(0.004, 0.04),
        xla=(0.003, 0.01),
    )
    assert modes.choose_so().mode == "xla"
    modes.compiling["xla"] = 30.0
    modes.runs.clear()
    choice = modes.choose_so(budget=20.0)
    assert choice.modes["frozen-xla"] == "not tried: the model could not be frozen"
    assert choice.mode == "xla"  # one is needed, and it is the best so far
    assert "used up" in str(choice.modes["function"])
