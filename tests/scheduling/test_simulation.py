"""The simulator behind `python -m benchmarks.scheduling`: is it to be believed?"""

import statistics
from dataclasses import replace

import pytest

from benchmarks.scheduling import arrivals, bounds, campaign, verdicts
from benchmarks.scheduling.campaign import OURS, POLICIES, Bound, Cell, Findings, Run
from benchmarks.scheduling.clients import ClosedLoop, OpenLoop
from benchmarks.scheduling.devices import DEVICES, MESSAGE, MS, Device, S
from benchmarks.scheduling.policies import FixedDelay, Greedy
from benchmarks.scheduling.simulator import Launch, simulate

H200 = DEVICES["resnet50-h200"]
CPU = DEVICES["mobilenetv2-cpu"]
PAIR = DEVICES["resnet50-2-h200"]


@pytest.fixture
def no_slowdowns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_SLOWER", 0.0)


def one_by_one(milliseconds: float) -> Device:
    return Device("single", "one row at a time", ((1, milliseconds),), 0, True)


# ── the device ─────────────────────────────────────────────────────────────────────────────────


def test_a_batch_costs_as_much_as_the_next_size_of_the_ladder() -> None:
    assert H200.run[1] == H200.run[16] == 1.9 * MS
    assert H200.run[17] == H200.run[32]
    assert H200.run[256] == 8.5 * MS


def test_between_measured_sizes_the_time_is_a_straight_line() -> None:
    share = (64 - 16) / (256 - 16)
    assert H200.run[64] == pytest.approx((1.9 + share * (8.5 - 1.9)) * MS, abs=1)


def test_capacity_is_what_the_best_size_does() -> None:
    assert H200.capacity == pytest.approx(256 / 8.5e-3)
    assert PAIR.capacity == pytest.approx(2 * H200.capacity)
    assert CPU.capacity < 32 / 43.5e-3  # its gather takes the device's time


# ── arrivals ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["poisson", "bursty"])
def test_arrivals_have_the_rate_that_was_asked_for(kind: str) -> None:
    count, rate, seeds = 10_000, 5_000.0, range(20)
    lasted = 0
    for seed in seeds:
        if kind == "poisson":
            sent = arrivals.poisson(seed, rate, count)
        else:
            sent = arrivals.bursty(seed, rate, count, 2 * MS)
        assert sent == sorted(sent)
        lasted += sent[-1]
    assert len(seeds) * count * S / lasted == pytest.approx(rate, rel=0.05)


def test_bursts_are_bursts() -> None:
    def spread(sent: list[int]) -> float:
        window = 5 * MS
        counts = [0] * (sent[-1] // window + 1)
        for time in sent:
            counts[time // window] += 1
        return statistics.pvariance(counts) / statistics.fmean(counts)

    assert spread(arrivals.poisson(1, 5_000, 20_000)) == pytest.approx(1, abs=0.15)
    assert spread(arrivals.bursty(1, 5_000, 20_000, 2 * MS)) > 5


# ── the simulation ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("device", [H200, CPU, PAIR], ids=lambda device: device.name)
@pytest.mark.parametrize("load", [0.3, 1.3])
def test_every_request_ends_once(name: str, device: Device, load: float) -> None:
    sent = arrivals.poisson(7, load * device.capacity, 1500)
    clients = OpenLoop(7, sent, device.deadline, 0)
    sizes = simulate(POLICIES[name](device), clients, device, 7)
    assert clients.done()  # a second end is an assertion of its own
    assert all(0 < latency <= device.deadline for latency in clients.latencies)
    assert clients.in_time <= sum(sizes) <= len(sent)
    assert max(sizes) <= device.max_batch


@pytest.mark.parametrize("name", POLICIES)
def test_a_closed_loop_never_has_more_under_way_than_it_may(name: str) -> None:
    loop = arrivals.Loop(4, 8)
    clients = ClosedLoop(3, loop, 2000, 200)
    sizes = simulate(POLICIES[name](H200), clients, H200, 3)
    assert clients.done()
    assert sum(sizes) == 2000
    assert max(sizes) <= loop.total


def test_a_single_request_takes_four_messages_its_gather_and_its_run(no_slowdowns: None) -> None:
    clients = OpenLoop(1, [0, S], 0, 0)
    simulate(Greedy(H200), clients, H200, 1)
    assert clients.latencies == [H200.single, H200.single]
    assert H200.single == 4 * MESSAGE + H200.gather[1] + H200.run[1]


def test_a_fixed_delay_is_waited_for_and_shared(no_slowdowns: None) -> None:
    clients = OpenLoop(1, [0, 2 * MS], 0, 0)
    sizes = simulate(FixedDelay(H200, 5 * MS), clients, H200, 1)
    assert sizes == [2]
    first = 5 * MS + 4 * MESSAGE + H200.gather[2] + H200.run[2]
    assert clients.latencies == [first, first - 2 * MS]


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_single_rows_wait_as_long_as_queueing_theory_says(load: float, no_slowdowns: None) -> None:
    """M/D/1: the mean wait is load · service / (2 · (1 - load))."""
    device = one_by_one(2.0)
    service = device.run[1] + 2 * MESSAGE  # a depth of one: the worker is taken for the way, too
    sent = arrivals.poisson(5, load * S / service, 40_000)
    clients = OpenLoop(5, sent, 0, 0)
    simulate(Greedy(device), clients, device, 5)
    waited = statistics.fmean(clients.latencies) - device.single
    assert waited == pytest.approx(load * service / (2 * (1 - load)), rel=0.1)


def test_two_batches_overlap_only_in_their_way_to_the_device(no_slowdowns: None) -> None:
    device = one_by_one(2.0)
    clients = OpenLoop(1, [0, 0, 0], 0, 0)
    simulate(Greedy(device, depth=2), clients, device, 1)
    single = device.single
    # The third leaves when the engine hears of the first; its message travels beside the second.
    assert clients.latencies == [single, single + 2 * MS, single + 4 * MS]


def test_what_expires_counts_with_its_deadline_and_is_not_in_time() -> None:
    device = one_by_one(2.0)
    clients = OpenLoop(1, [0] * 10, 5 * MS, 0)
    sizes = simulate(Greedy(device), clients, device, 1)
    assert len(sizes) < 10
    assert clients.in_time == 2
    assert clients.latencies.count(5 * MS) == 8


def test_a_policy_that_forgets_requests_is_noticed() -> None:
    class Forgetful(Greedy):
        def next_batch(self, now: int) -> Launch | None:
            return None

    with pytest.raises(AssertionError, match="forgotten"):
        simulate(Forgetful(H200), OpenLoop(1, [0], 0, 0), H200, 1)


def test_runs_of_one_seed_are_pairs() -> None:
    """The same seed gives the same run; policies see the same arrivals and slowdowns."""
    cell = Cell("resnet50-h200", "bursty", 0.5)
    first, _ = campaign.pair(cell, ["greedy", OURS], 3, 1000)
    again, _ = campaign.pair(cell, [OURS, "greedy"], 3, 1000)
    other, _ = campaign.pair(cell, ["greedy"], 4, 1000)
    assert first == again
    assert first["greedy"] != other["greedy"]
    # A delay of nothing is greedy: with pairs, to the nanosecond.
    sent = arrivals.poisson(1, 5_000, 1000)
    latencies = []
    for policy in (Greedy(H200), FixedDelay(H200, 0)):
        clients = OpenLoop(1, sent, 0, 0)
        simulate(policy, clients, H200, 1)
        latencies.append(clients.latencies)
    assert latencies[0] == latencies[1]


# ── bounds ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["poisson", "bursty"])
@pytest.mark.parametrize("load", [0.1, 0.7, 1.2])
@pytest.mark.parametrize("device", DEVICES)
def test_no_policy_beats_the_bound_of_an_open_loop(kind: str, load: float, device: str) -> None:
    runs, bound = campaign.pair(Cell(device, kind, load), list(POLICIES), 2, 1500)
    for run in runs.values():
        assert run.p50 >= bound.p50
        assert run.p99 >= bound.p99
        assert run.rate <= bound.rate * (1 + 1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_no_policy_beats_the_bound_of_a_closed_loop(device: str) -> None:
    for loop in campaign.LOOPS:
        runs, bound = campaign.pair(Cell(device, "closed", loop=loop), list(POLICIES), 2, 3000)
        for run in runs.values():
            assert run.rate <= bound.rate * 1.01  # think times are drawn, the bound has their mean


def test_the_bound_is_exact_where_there_is_nothing_to_decide() -> None:
    device = one_by_one(2.0)
    assert bounds.latency(device, [0, S, 2 * S], 0.99, 10 * S) == device.single
    assert bounds.goodput(device, [0] * 10, device.single + 3 * MS) == 0.2
    loop = arrivals.Loop(1, 1)
    assert bounds.cycle(device, loop) == pytest.approx(device.single + arrivals.THINK / 2)


# ── verdicts ───────────────────────────────────────────────────────────────────────────────────


def findings(cell: Cell, ours: list[float], theirs: list[float]) -> Findings:
    def runs(p99s: list[float]) -> list[Run]:
        return [Run(seed, 1.0, p99, 1.0, 100.0, 1.0) for seed, p99 in enumerate(p99s)]

    others = {name: runs(theirs) for name in POLICIES if name != OURS}
    return Findings(cell, {OURS: runs(ours)} | others, Bound(1.0, 1.0, 100.0, None))


@pytest.mark.parametrize(
    ("ours", "met"),
    [
        ([10.0, 11.0, 12.0], True),  # equal, pair by pair
        ([11.0, 12.1, 13.2], False),  # 10 % worse
        ([10.0, 12.1, 11.0], None),  # 1 % worse, but it varies
        ([5.0, 11.0, 12.0], True),  # it varies, but is never worse
    ],
)
def test_a_goal_can_be_met_missed_or_unsure(ours: list[float], met: bool | None) -> None:
    found = findings(Cell("resnet50-h200", "poisson", 0.5), ours, [10.0, 11.0, 12.0])
    goal = "open loop: p99 against the best other"
    judged = {verdict.goal: verdict for verdict in verdicts.verdicts([found])}
    assert judged[goal].met is met
    assert bool(judged[goal].misses) is (met is not True)


def test_pairs_of_devices_and_pipelined_policies_are_judged_beside_the_goals() -> None:
    for device, required in (("resnet50-h200", True), ("resnet50-2-h200", False)):
        found = findings(Cell(device, "poisson", 0.5), [20.0, 20.0], [10.0, 10.0])
        missed = [verdict for verdict in verdicts.verdicts([found]) if not verdict.met]
        assert any(verdict.required for verdict in missed) is required
        assert any("pipelined" in verdict.goal for verdict in missed if not verdict.required)


def test_better_somewhere_must_be_at_a_load_that_matters() -> None:
    cell = Cell("resnet50-h200", "poisson", 0.5)
    for load, met in ((0.5, True), (0.1, None)):
        found = findings(replace(cell, load=load), [5.0, 5.0], [10.0, 10.0])
        judged = {verdict.goal: verdict for verdict in verdicts.verdicts([found])}
        verdict = judged.get("somewhere better than greedy")
        assert (verdict.met if verdict else None) is met
