"""A plan from a model's facts: what is measured, what is fitted, how it reads."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.tuning import picture
from penstock.tuning.plan import Plan, plan_of

GB = 1 << 30
FACTS: dict[str, Any] = {
    "mode": "frozen-xla",
    "modes": {
        "frozen-xla": {"1": 2_000_000, "64": 5_000_000},
        "function": "slower: 9.7 ms for 1 rows, where another mode takes 2 ms",
    },
    "latency": {"1": 2_000_000, "16": 2_400_000, "64": 5_000_000},
    "rates": {"1": 600.0, "16": 8_000.0, "64": 16_000.0},
    "rungs": [1, 32, 64],
    "max_batch": 64,
    "precision": "mixed_float16",
    "drift": {
        "mixed_float16": {
            "largest": 0.0041,
            "mean": 0.0003,
            "same_class": 1.0,
            "rows": 8,
            "nanoseconds": 4_000_000,
        }
    },
    "memory": {
        "held": GB // 8,
        "fixed": GB // 8,
        "per_row": 8 << 20,
        "limit": 4 * GB,
        "peaks": {"16": GB // 4, "64": GB},
    },
    "reasons": {"max_batch": "a reason", "precision": "twice as fast"},
    "unbatched": "",
    "notes": ["something to know"],
    "cached": False,
}


def _plan(**changes: Any) -> Plan:
    return plan_of("net", "/net.keras", "gpu:0 NVIDIA", {**FACTS, **changes}, 12.345)


def test_what_was_not_measured_is_on_the_line_between() -> None:
    sizes = {size.rows: size for size in _plan().sizes}
    assert sizes.keys() == {1, 16, 32, 64}
    assert not sizes[32].measured
    assert sizes[32].in_ladder
    assert not sizes[16].in_ladder
    assert sizes[32].latency == pytest.approx(2.4e-3 + (5e-3 - 2.4e-3) / 3)
    assert sizes[32].rows_per_second == pytest.approx(32 / (2e-3 + 2e-3 / 3))
    assert sizes[64].memory == GB
    assert sizes[32].memory == GB // 8 + 32 * (8 << 20)


def test_it_goes_through_json_and_says_what_is_needed() -> None:
    plan = _plan()
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.to_json()["memory_needed"] == plan.memory_needed == GB // 8 + 64 * (8 << 20)
    assert plan.to_json()["rows_per_second"] == 16_000
    with pytest.raises(ConfigError, match="no plan"):
        Plan.from_json({"model": "net"})


def test_it_reads_as_a_table_with_reasons() -> None:
    text = str(_plan())
    assert "net on gpu:0 NVIDIA" in text
    lines = [line for line in text.splitlines() if line.endswith(("largest", "ladder"))]
    assert [line.split()[0] for line in lines] == ["1", "32", "64"]
    assert "≈" in lines[1]
    assert "16,000" in lines[2]
    for part in (
        "- largest batch 64: a reason",
        "- mode function: slower: 9.7 ms",
        "- mode frozen-xla (taken): 2 ms for 1 row, 5 ms for 64 rows",
        "- drift of mixed_float16: 0.0041 at most, 0.0003 on average of 8 rows, the same class in",
        "640 MB at the largest batch: 128 MB and 8 MB a row; there are 4.0 GB",
        "- note: something to know",
    ):
        assert part in text


def test_its_need_of_memory_is_told_by_parts_and_kept_for_later() -> None:
    need = _plan().need
    assert (need.weights, need.fixed, need.per_row) == (GB // 8, 0, 8 << 20)
    assert need.measured
    assert not dataclasses.replace(_plan(), memory={}).need.measured


def test_it_is_drawn_and_without_matplotlib_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plan().plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot be written"):
        _plan().plot(tmp_path / "none" / "plan.png")
    for see in (_plan().plot, picture.check):
        with pytest.raises(ConfigError, match=r"plan\.xyz: expected \.png, or one of .*svg"):
            see(tmp_path / "plan.xyz")
    with pytest.raises(ConfigError, match="nothing to draw"):
        dataclasses.replace(_plan(), sizes=()).plot(tmp_path / "plan.png")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        _plan().plot(tmp_path / "plan.png")


def test_a_model_that_could_not_be_measured_still_has_a_plan() -> None:
    plan = _plan(latency={}, rates={}, rungs=[], memory={}, unbatched="it draws random numbers")
    assert plan.sizes == ()
    assert plan.rows_per_second == 0.0
    assert "rows are run as they come: it draws random numbers" in str(plan)


def test_a_model_that_is_not_batched_has_the_rate_of_single_rows() -> None:
    alone = {"latency": {"1": 2_000_000}, "rates": {}, "rungs": [], "memory": {}, "max_batch": 32}
    plan = _plan(**alone, unbatched="rows depend on each other")
    assert plan.rows_per_second == pytest.approx(500)
    assert "32" not in str(plan)


def test_what_fits_on_each_card_is_printed_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.tune import _show_room
    from penstock.devices.cards import Card
    from penstock.devices.room import Room

    card = Card("GPU-1", "Fake", 16 * GB, 12 * GB, 4 * GB, 0)
    monkeypatch.setattr("penstock.devices.ledger.rooms", lambda: [Room(card, (), 12 * GB)])
    _show_room(_plan())
    head, line = capsys.readouterr().out.strip().splitlines()
    told = dict(
        zip(
            head.replace("a row", "row").replace("largest batch", "batch").split(),
            line.replace(" GB", "").replace(" MB", "").split(),
            strict=True,
        )
    )
    assert told["card"] == "gpu:0"
    assert told["left"] == "12.0"
    assert told["batch"] == "64"
    assert told["workers"] == "6"  # 700 MB, 3 programs of 128 MB, 640 MB / 0.92 each, of 12 GB
