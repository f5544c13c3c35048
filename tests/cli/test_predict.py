"""`penstock predict` and `penstock merge` as people run them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.conditions import until


@pytest.fixture
def rows(shop):
    x = np.arange(300, dtype=np.float32).reshape(100, 3)
    np.save(shop.place / "x.npy", x)
    return x


def test_predicts_a_file(shop, rows):
    done = shop.run("predict", "shop:double", "x.npy", "--out", "y.npy", "--report", "r.html")
    assert done.returncode == 0, done.stderr
    assert "100 rows written to" in done.stdout
    assert np.array_equal(np.load(shop.place / "y.npy"), rows + rows)
    assert "<svg" in (shop.place / "r.html").read_text()
    again = shop.run("predict", "shop:double", "x.npy", "--out", "y.npy")
    assert (again.returncode, "done before" in again.stdout) == (0, True)
    other = shop.run("predict", "shop:negate", "x.npy", "--out", "y.npy")
    assert other.returncode == 1
    assert "another model" in other.stderr


def test_rows_that_fail_make_it_end_with_3(shop, rows):
    (shop.place / "picky.py").write_text(
        "def f(x):\n    if (x == 12).any():\n        raise ValueError('twelve')\n    return x\n"
    )
    done = shop.run("predict", "picky:f", "x.npy", "--out", "y.jsonl", "--json")
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert (report["written"], report["failed"], report["kinds"]) == (99, 1, {"model": 1})
    (line,) = Path(report["errors"]).read_text().splitlines()
    assert json.loads(line)["key"] == 4
    stopped = shop.run("predict", "picky:f", "x.npy", "--out", "z.jsonl", "--max-errors", 0)
    assert stopped.returncode == 1
    assert "max_errors is 0" in stopped.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [("nofile.keras", "there is no file or folder"), ("nowhere:f", "no module 'nowhere'")],
)
def test_a_model_that_cannot_be_loaded_is_told_of_once(shop, rows, source, words):
    done = shop.run("predict", source, "x.npy", "--out", "y.npy", "--devices", "cpu")
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert "ended" not in done.stderr


def test_csv_without_names(shop):
    (shop.place / "x.csv").write_text("1.5,2\n3.5,4\n")
    (shop.place / "m.py").write_text("def f(x):\n    return x['a'] + x['b']\n")
    done = shop.run("predict", "m:f", "x.csv", "--header", "a, b", "--out", "y.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(shop.place / "y.npy").tolist() == [3.5, 7.5]


def test_shards_and_merge(shop, rows):
    shop.run("predict", "shop:double", "x.npy", "--out", "whole.parquet")
    for shard in ("1/2", "2/2"):
        done = shop.run(
            "predict", "shop:double", "x.npy", "--out", "y.parquet", "--shard", shard,
            "--shards", "strided",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    merged = shop.run("merge", "y.parquet")
    assert merged.returncode == 0, merged.stderr
    assert "100 rows of 2 shards" in merged.stdout
    one = (shop.place / "whole.parquet").read_bytes()
    assert (shop.place / "y.parquet").read_bytes() == one


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["x.npy", "--out", "y.xyz"], 1, "expected one of"),
        (["nothing.npy", "--out", "y.npy"], 1, "no file or folder"),
        (["x.npy"], 2, "--out"),
        (["x.npy", "--out", "y.npy", "--size", "large"], 2, "expected 96 or 96,128"),
        (["x.npy", "--out", "y.npy", "--features", "{"], 2, "expected JSON"),
        (["x.npy", "--out", "y.npy", "--engine", "e", "--max-batch", "4"], 1, "runs already"),
    ],
)
def test_what_is_not_understood(shop, rows, arguments, code, message):
    done = shop.run("predict", "shop:double", *arguments)
    assert done.returncode == code
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_page_that_cannot_be_written_is_told_before_anything_is_done(shop, rows):
    command = ("predict", "shop:double", "x.npy", "--out", "y.npy", "--report", "no/where/r.html")
    done = shop.run(*command)
    assert done.returncode == 1
    assert "--report no/where/r.html: expected a folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (shop.place / "y.npy").exists()


def test_a_page_that_could_not_be_written_after_all_hides_no_summary(shop, rows):
    (shop.place / "away.py").write_text(
        "import os\ndef f(x):\n"
        "    if os.path.isdir('pages'):\n        os.rename('pages', 'gone')\n    return x\n"
    )
    (shop.place / "pages").mkdir()
    done = shop.run("predict", "away:f", "x.npy", "--out", "y.npy", "--report", "pages/r.html")
    assert (done.returncode, "100 rows written" in done.stdout) == (1, True)
    assert "the job is done, but --report pages/r.html cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupted_job_goes_on(shop, rows):
    (shop.place / "slow.py").write_text(
        "import time\ndef f(x):\n    time.sleep(0.1)\n    return x\n"
    )
    command = ("predict", "slow:f", "x.npy", "--out", "y.npy", "--max-batch", 4, "--chunk", 8)
    job = shop.begin(*command)
    manifest = shop.place / "y.npy.manifest.jsonl"
    until(lambda: manifest.exists() and '{"part"' in manifest.read_text())
    job.send_signal(signal.SIGINT)
    _, told = job.communicate(timeout=30)
    assert job.returncode == 130
    assert told.endswith("interrupted; the same command goes on from here\n")
    done = shop.run(*command)
    assert done.returncode == 0, done.stderr
    assert "rows were done before" in done.stdout
    assert np.array_equal(np.load(shop.place / "y.npy"), rows)


def test_a_bar_in_a_terminal(shop, rows):
    main, side = pty.openpty()
    (shop.place / "slow.py").write_text(
        "import time\ndef f(x):\n    time.sleep(0.2)\n    return x\n"
    )
    command = shop.command("predict", "slow:f", "x.npy", "--out", "y.npy", "--max-batch", "16",
                           "--chunk", "32")  # fmt: skip
    job = subprocess.Popen(
        command, cwd=shop.place, env=shop.environment, stderr=side, stdout=subprocess.DEVNULL
    )
    os.close(side)
    shown = b""
    try:
        while block := os.read(main, 65536):
            shown += block
    except OSError:
        pass  # the other side is closed
    os.close(main)
    assert job.wait(30) == 0
    text = shown.decode()
    assert "/100 rows" in text
    assert "device" in text
    assert "limit:" in text


def test_what_is_printed_to_a_full_disk_is_an_error_of_one_line(shop, rows):
    command = shop.command("predict", "shop:double", "x.npy", "--out", "y.npy")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" > /dev/full', "sh", *command],
        cwd=shop.place, env=shop.environment, stderr=subprocess.PIPE, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "penstock: error: No space left on device\n")
    assert np.array_equal(np.load(shop.place / "y.npy"), rows + rows)


def test_without_stdin_stdout_and_stderr(shop, rows):
    command = shop.command("predict", "shop:double", "x.npy", "--out", "y.npy")
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, cwd=shop.place, env=shop.environment, timeout=30).returncode == 0
    assert np.array_equal(np.load(shop.place / "y.npy"), rows + rows)


def test_too_many_failures_say_what_the_first_was(shop, rows):
    (shop.place / "picky.py").write_text("def f(x):\n    raise ValueError('never')\n")
    done = shop.run("predict", "picky:f", "x.npy", "--out", "y.npy", "--max-errors", 5)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "(the first row that failed: 0: ValueError: never)"
