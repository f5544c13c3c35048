"""How many loaders there are, and what becomes of the parts of one that dies. Without processes."""

from __future__ import annotations

import queue

import pytest

from penstock.errors import WorkerLost
from penstock.offline import loaders
from penstock.offline.labour import Finished
from penstock.offline.loaders import LoaderCrew
from penstock.offline.shelves import run_of


class FakeProcess:
    def wait(self) -> int:
        return -9


class FakeLoader:
    """Has the face of a loader, and starts nothing."""

    def __init__(self, settings: str, lock: int, told: object) -> None:
        self.open: list[int] = []
        self.stages: dict[str, float] = {}
        self.process = FakeProcess()
        self.reading = None
        self.told = told
        self.cared_for: dict[int, object] = {}

    def assign(self, part: int, care: object = None) -> None:
        self.open.append(part)
        self.cared_for[part] = care

    def end(self, patience: float) -> None:
        return None


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loaders, "time", clock)
    monkeypatch.setattr(loaders, "Loader", FakeLoader)
    return clock


def crew_of(most: int, parts: int | None = None, run: int = 1) -> LoaderCrew:
    return LoaderCrew("{}", -1, most, queue.SimpleQueue(), parts, run)


def pass_time(crew: LoaderCrew, clock: Clock, device: float, starved: float) -> int:
    clock.now += 3
    for loader in crew._loaders:
        loader.stages = {"starved": loader.stages.get("starved", 0.0) + 3 * starved}
    crew.adapt(device)
    return crew.count


def test_more_while_the_device_idles_for_lack_of_rows(clock):
    crew = crew_of(6)
    assert [pass_time(crew, clock, device=0.01, starved=0.9) for _ in range(3)] == [4, 6, 6]


@pytest.mark.parametrize(
    ("most", "parts", "count"),
    [(1, None, 1), (2, None, 1), (16, None, 4), (16, 100, 4), (16, 3, 3), (16, 0, 1)],
)
def test_a_quarter_of_them_begin_and_no_more_than_there_are_parts(clock, most, parts, count):
    assert crew_of(most, parts).count == count


@pytest.mark.parametrize(("device", "counts"), [(0.4, [3, 7, 15]), (0.8, [2, 3, 4])])
def test_as_many_as_the_idle_device_could_feed_on(clock, device, counts):
    crew = crew_of(16, parts=1)
    assert [pass_time(crew, clock, device, starved=0.9) for _ in range(3)] == counts


@pytest.mark.parametrize(("device", "starved"), [(0.95, 0.9), (0.1, 0.1)])
def test_no_more_when_it_is_busy_or_they_do_not_wait_for_rows(clock, device, starved):
    crew = crew_of(6)
    assert [pass_time(crew, clock, device, starved) for _ in range(3)] == [1, 1, 1]


def test_each_has_two_parts_and_gets_another_when_one_is_recorded(clock):
    crew = crew_of(2)
    todo = iter(range(10))
    assert crew.fill(todo) == 2
    pass_time(crew, clock, device=0.1, starved=0.9)
    assert crew.fill(todo) == 4
    assert sorted(part for loader in crew._loaders for part in loader.open) == [0, 1, 2, 3]
    crew.recorded(1)
    assert crew.fill(todo) == 4
    assert 4 in crew._loaders[0].open


def test_parts_of_the_dead_are_done_first_and_only_after_all_that_they_told(clock):
    crew = crew_of(2)
    todo = iter(range(10))
    crew.fill(todo)
    (dead,) = crew._loaders
    dead.told(dead, {"finished": 0, "rows": 5, "facts": {}, "stages": {}, "answered": 0})
    dead.told(dead, None)
    crew.fill(todo)
    assert crew._loaders == [dead], "its last words were not heard yet"
    assert crew.events.get() == Finished(0, 5, {})
    crew.recorded(0)
    crew.fill(todo)
    (fresh,) = crew._loaders
    assert fresh is not dead
    assert fresh.open == [1, 2]


def test_loaders_that_die_again_and_again_end_the_job(clock):
    crew = crew_of(1)
    todo = iter(range(10))
    for _ in range(3):
        crew.fill(todo)
        (loader,) = crew._loaders
        loader.told(loader, None)
    with pytest.raises(WorkerLost, match="again and again"):
        crew.fill(todo)


def test_a_row_over_which_two_die_alone_is_left_out(clock):
    crew = crew_of(1)
    todo = iter(range(10))

    def die(row: int | None = None) -> FakeLoader:
        (loader,) = crew._loaders
        if row is not None:
            loader.told(loader, {"reading": [1, row], "stages": {}, "answered": 0})
        loader.told(loader, None)
        crew.fill(todo)
        return crew._loaders[0]

    crew.fill(todo)
    assert crew._loaders[0].cared_for == {0: None, 1: None}
    assert die().cared_for == {0: {}, 1: {}}
    assert die(row=77).cared_for == {0: {}, 1: {}}
    left = die(row=77).cared_for
    assert (left[0], list(left[1])) == ({}, [77])
    die(row=79)
    assert list(die(row=79).cared_for[1]) == [77, 79]
    for part in (0, 1):
        crew.recorded(part)
    crew.fill(todo)
    assert crew._loaders[0].cared_for == {**crew._loaders[0].cared_for, 2: None, 3: None}


def test_one_that_dies_behind_a_row_that_is_read_blames_none(clock):
    crew = crew_of(1)
    todo = iter(range(10))
    for row in (5, 6, 7):
        crew.fill(todo)
        (loader,) = crew._loaders
        loader.told(loader, {"reading": [0, row], "stages": {}, "answered": 0})
        loader.told(loader, {"reading": [0, None], "stages": {}, "answered": 0})
        loader.told(loader, None)
    with pytest.raises(WorkerLost, match=r"over part 0$"):
        crew.fill(todo)


def test_parts_that_are_read_together_go_to_one_loader(clock):
    crew = crew_of(8, parts=20, run=3)
    todo = iter(range(7))
    crew.fill(todo)
    first, second = crew._loaders
    assert (first.open, second.open) == ([0, 1], [3, 4])
    for part in (3, 0):
        crew.recorded(part)
        crew.fill(todo)
    assert (first.open, second.open) == ([1, 2], [4, 5])
    for part in (1, 2):
        crew.recorded(part)
    crew.fill(todo)
    assert (first.open, second.open) == ([6], [4, 5])


def test_one_that_has_nothing_left_takes_from_another(clock):
    crew = crew_of(8, parts=20, run=9)
    todo = iter(range(6))
    assert crew.fill(todo) == 4
    first, second = crew._loaders
    assert (first.open, second.open) == ([0, 1], [5, 4])
    second.told(second, None)
    crew.fill(todo)
    assert crew._loaders[1].open == [5, 4]


@pytest.mark.parametrize(
    ("together", "part", "parts", "loaders", "run"),
    [(1, 256, 100, 4, 1), (1000, 256, 100, 4, 4), (10**6, 256, 100, 4, 25), (9, 4, None, 2, 1)],
)
def test_runs_leave_enough_for_all(together, part, parts, loaders, run):
    assert run_of(together, part, parts, loaders) == run
