from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from rich.console import Console

from penstock.cli.demo.comparison import OWN_COPY, PENSTOCK, Agreement, Comparison, Way
from penstock.cli.demo.network import LAYERS, WEIGHTS_VARIABLE, Network, images, write_weights
from penstock.cli.demo.show import bar, sentences, show

OWN = Way(
    name=OWN_COPY,
    answers_per_second=100,
    p50_ms=80,
    p99_ms=120,
    start_seconds=4,
    memory_bytes=800 << 20,
    processes=8,
    blas_threads=1,
    answers=400,
    mean_batch=1.0,
)


def comparison(**changes):
    shared = dataclasses.replace(OWN, name=PENSTOCK, **changes)
    work = {"processes": 8, "weights": 2e7, "weight_bytes": 8e7, "seconds": 4}
    return Comparison({"cores": 2}, work, (OWN, shared), Agreement(512, 512, 1e-6))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_measures_and_agrees(shop):
    done = shop.run("demo", "--seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    own, shared = told["ways"]
    assert (own["processes"], shared["processes"]) == (8, 10)
    assert min(own["answers_per_second"], shared["answers_per_second"]) > 0
    assert own["memory_bytes"] > 8 * told["work"]["weight_bytes"] > 0
    assert shared["memory_bytes"] > told["work"]["weight_bytes"]
    assert told["agreement"]["compared"] == 8 * 64
    assert told["agreement"]["largest_difference"] < 1e-3
    assert "processes load a copy each" in done.stderr


def test_the_network_answers_rows_alone_as_together(tmp_path, monkeypatch):
    write_weights(tmp_path / "weights.npz")
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "weights.npz"))
    network = Network()
    x = images(3, 4)
    together = network(x)
    assert together.shape == (4, LAYERS[-1])
    assert together.dtype == np.float32
    np.testing.assert_allclose(
        np.concatenate([network(row[None]) for row in x]), together, rtol=1e-3, atol=1e-4
    )
    np.testing.assert_array_equal(images(3, 4), x)


def test_says_plainly_when_it_is_slower():
    first, second, third = sentences(comparison(answers_per_second=40, memory_bytes=200 << 20))
    assert first.startswith("Penstock gave fewer answers here (0.40 ×)")
    assert second == "Memory: 4.0 × less. Start: 1.0 × faster."
    assert third.startswith("The answers agree: 512 of 512")


def test_says_when_it_is_faster_and_why():
    first, second, _ = sentences(
        comparison(answers_per_second=250, mean_batch=7.5, memory_bytes=1600 << 20, start_seconds=8)
    )
    assert "2.5 × the answers" in first
    assert "7.5 at a time" in first
    assert second == "Memory: 2.0 × more. Start: 2.0 × slower."


def test_says_when_there_is_no_difference_and_when_answers_differ():
    result = dataclasses.replace(comparison(), agreement=Agreement(512, 100, 0.5))
    first, _, third = sentences(result)
    assert first == "Both ways gave about as many answers."
    assert "DO NOT AGREE" in third


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "        "), (1.0, "████████"), (0.5, "████    "), (0.3, "██▍     ")],
)
def test_bars(share, expected):
    assert bar(share, 8) == expected


def test_every_figure_is_shown():
    console = Console(width=100, record=True, force_terminal=False)
    show(comparison(answers_per_second=250), console)
    text = console.export_text()
    for figure in ("100", "250", "80.0 ms", "120.0 ms", "4.0 s", "800 MB"):
        assert figure in text
