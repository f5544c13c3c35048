"""What a job tells: the stage that limits, advice, JSON, and a page that needs nothing else."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import InputError
from penstock.offline.monitor import Progress, Sample
from penstock.offline.page import page, rates
from penstock.offline.report import JobReport, shares_of
from penstock.offline.stages import Stages, limiting, since, total
from tests.data.pictures import scene
from tests.offline.conftest import model
from tests.offline.jobs import begin


@pytest.mark.parametrize(
    ("spent", "device", "limit"),
    [
        ({"answers": 5, "starved": 1}, 0.95, "device"),
        ({"answers": 5, "starved": 1}, 0.30, "queue"),
        ({"answers": 1, "starved": 5, "reading": 5}, 0.30, "reading"),
        ({"answers": 1, "starved": 5, "decoding": 5}, 0.30, "decoding"),
        ({"answers": 1, "full": 5}, 0.30, "writing"),
        ({"answers": 3, "full": 2, "starved": 2, "reading": 1, "writing": 8}, 0.30, "writing"),
        ({"answers": 1, "mapping": 5}, 0.30, "mapping"),
        ({"answers": 1, "sending": 5}, 0.30, "sending"),
        ({}, 0.0, ""),
    ],
)
def test_the_stage_that_limits(spent, device, limit):
    assert limiting(spent, device) == limit


def test_stages_add_up():
    stages = Stages()
    for _ in range(2):
        with stages.timed("reading"):
            pass
    assert stages.seconds["reading"] > 0
    assert total([{"a": 1.0}, {"a": 2.0, "b": 1.0}]) == {"a": 3.0, "b": 1.0}
    assert since({"a": 3.0, "b": 1.0}, {"a": 1.0}) == {"a": 2.0, "b": 1.0}


def test_shares_are_of_the_whole():
    spent = {"starved": 2.0, "answers": 6.0, "full": 1.0, "sending": 1.0, "decoding": 9.0}
    shares = shares_of(spent, 0.4)
    assert shares["decoding"] == 0.2
    assert (shares["device"], shares["queue"]) == (0.4, 0.2)
    assert sum(shares.values()) == pytest.approx(1)
    shares = shares_of({**spent, "writing": 10.0}, 0.4)
    assert shares["writing"] == 0.3, "nothing more is read before what was read is written"
    assert sum(shares.values()) == pytest.approx(1)
    assert shares_of({}, 0.0) == {}


REPORT = JobReport(
    "net<work>", "images", "y.parquet", 120, 100, 20, 10, 2.0, 0.5, 0.1,
    kinds={"decode": 20}, errors="y.parquet.errors.jsonl", device=0.4, devices=("cpu",), cpu=1.0,
    cores=2, loaders=2, limit="decoding", shares={"decoding": 0.8, "device": 0.2},
    samples=(Sample(0.5, 30, 0.4, 1.0, 1, "decoding"), Sample(1.0, 120, 0.9, 0.5, 2, "device")),
)  # fmt: skip


def test_advice_names_the_stage_and_what_is_idle():
    assert REPORT.advice.startswith("device idle 60%: decoding limits; 2.0 of 2 cores busy; ")
    assert "20 rows failed (20 decode), in y.parquet.errors.jsonl" in str(REPORT)
    assert "110 rows in 2.0 s, 55 a second" in str(REPORT)


def test_a_short_job_gives_no_advice():
    report = dataclasses.replace(REPORT, seconds=0.05)
    assert report.advice == ""
    assert "waited or worked" not in str(report)


def test_one_row_is_no_rows():
    report = dataclasses.replace(REPORT, rows=2, written=1, failed=1, known=1)
    assert "1 row written to" in str(report)
    assert "1 row failed" in str(report)
    assert "1 row was done before" in str(report)


def test_advice_on_reading_is_first_about_parsing():
    report = dataclasses.replace(REPORT, limit="reading")
    assert "faster with a format that need not be parsed" in report.advice
    assert "Parquet" in report.advice


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_needs_nothing_else():
    text = page(REPORT)
    seen = Links()
    seen.feed(text)
    assert seen.links == []
    assert "://" not in text
    assert "@import" not in text
    assert seen.tags.count("svg") == 4
    assert "net&lt;work&gt;" in text
    assert "decoding limits" in text


def test_rates_count_from_what_was_done_before():
    assert rates(REPORT.samples, REPORT.known) == [40.0, 180.0]


def test_a_real_report_can_be_written(x, engine, place):
    reports = []
    progress = []
    penstock.predict("scores", x, engine=engine, on_report=reports.append, tell=progress.append)
    told = json.loads(json.dumps(reports[0].to_json()))
    assert (told["rows"], told["written"], told["computed"]) == (1000, 1000, 1000)
    assert 0 <= told["device"] <= 1
    assert 0 <= told["cpu"] <= 1
    assert sum(told["shares"].values()) == pytest.approx(1, abs=0.01)
    assert told["plan"]["batch"] == 16
    assert (progress[-1].rows, progress[-1].total) == (1000, 1000)
    reports[0].page(place / "report.html")
    assert "<svg" in (place / "report.html").read_text()


def test_mapping_takes_time_only_where_there_is_a_map(x, engine, place):
    assert "mapping" not in penstock.predict("scores", x, "y.npy", engine=engine).stages
    mapped = penstock.predict("scores", x, "z.npy", engine=engine, map=model("best_of_positive"))
    assert mapped.stages["mapping"] > 0


def test_the_first_failure_is_told(x, engine, place):
    x[7, 0] = x[9, 0] = -1
    np.save("x.npy", x)
    for _ in range(2):
        report = penstock.predict("picky", "x.npy", "y.npy", engine=engine)
        assert report.first == "7: ValueError: a negative row"
        assert "  7: ValueError: a negative row" in str(report).splitlines()
    assert "a negative row" in page(report)
    with pytest.raises(InputError, match="max_errors is 0") as caught:
        penstock.predict("picky", "x.npy", "z.npy", engine=engine, max_errors=0)
    (note,) = caught.value.__notes__
    assert note == "the first row that failed: 7: ValueError: a negative row"


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_names_that_are_no_text_are_told_all_the_same(place, encoding):
    (place / "bilder ä").mkdir()
    scene(20, 10).save("bilder ä/1.png")
    Path("bilder ä/4\udcfe.png").write_text("no image")
    job = begin(
        model("scores"), "bilder ä", "--out", "ä\udcff.jsonl", "--size", 6, "--report", "r.html",
        PYTHONIOENCODING=encoding,
    )  # fmt: skip
    out, told = job.communicate(timeout=50)
    assert (job.returncode, told) == (3, "")
    assert "/4\\udcfe.png" in out
    assert "\\udcff.jsonl" in out
    html = Path("r.html").read_text(encoding="utf-8")
    assert "bilder ä/4\\udcfe.png" in html
    assert "ä\\udcff.jsonl" in html


@pytest.mark.parametrize("kind", ["arrays", "images"])
def test_rows_are_counted_before_their_part_is_done(place, monkeypatch, kind):
    monkeypatch.setenv("OFFLINE_COUNT", "/dev/null")
    monkeypatch.setenv("OFFLINE_SLEEP", "0.25")
    if kind == "images":
        for number in range(64):
            scene(20, 10).save(f"{number}.png")
    else:
        np.save("x.npy", np.ones((64, 3), np.float32))
    what, options = (".", {"size": 6}) if kind == "images" else ("x.npy", {})
    told: list[Progress] = []
    report = penstock.predict(
        model("counted"), what, "y.npy", tell=told.append, max_batch=8, chunk=128, **options
    )
    assert report.plan["part"] >= 64
    rows = [progress.rows for progress in told]
    assert rows == sorted(rows)
    assert len({count for count in rows if 0 < count < 64}) > 1, rows
    assert rows[-1] == 64
    assert any(progress.rate > 0 and progress.left > 0 for progress in told)
    assert report.seconds - report.samples[-1].at < 0.5, "the page shows all of it"
