"""The memory plan: arithmetic alone."""

from __future__ import annotations

import json
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.devices.cards import Card
from penstock.devices.plan import (
    Need,
    estimate,
    fit,
    largest_batch,
    measured,
    plan,
    worker_need,
)
from penstock.devices.room import reckon
from penstock.errors import DeviceMemoryError

MB, GB = 1 << 20, 1 << 30


def rooms(*free: int):
    return reckon(
        [Card(f"GPU-{at}", "Fake", 80 * GB, left, 0, at) for at, left in enumerate(free)], []
    )


def test_two_small_batches_tell_what_a_large_one_takes() -> None:
    """ResNet-50's peaks as measured on a card (MB by rows)."""
    peaks = {16: 214, 32: 324, 64: 554, 128: 999, 256: 1900}
    fixed, per_row = fit([(16, 214 * MB), (64, 554 * MB)])
    for rows, peak in peaks.items():
        assert fixed + per_row * rows == pytest.approx(peak * MB, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 1 << 40)), min_size=1, max_size=6))
def test_no_peak_that_was_seen_is_above_the_line(points) -> None:
    fixed, per_row = fit(points)
    assert fixed >= 0
    assert per_row >= 0
    assert all(fixed + per_row * rows >= peak for rows, peak in points)


def test_points_that_tell_little() -> None:
    assert fit([(8, 800), (8, 800)]) == (0, 100)  # one size: all of it may grow with the rows
    assert fit([(8, 900), (16, 700)]) == (900, 0)  # noise
    assert fit([(1, 110), (2, 120)]) == (100, 10)
    with pytest.raises(ValueError, match="no point"):
        fit([])


_NEEDS = st.builds(
    Need,
    weights=st.integers(0, 4 * GB),
    fixed=st.integers(0, GB),
    per_row=st.integers(0, 64 * MB),
    buffers_per_row=st.integers(0, 8 * MB),
    program=st.integers(0, GB),
    ladder=st.sampled_from([(), (1, 16, 64), (8, 4096)]),
)


@given(_NEEDS, st.integers(0, 20 * GB), st.integers(1, 5000))
def test_the_largest_batch_fits_and_one_more_row_does_not(need, limit, most) -> None:
    rows = largest_batch(need, limit, most)
    assert 0 <= rows <= most
    if rows:
        assert need.at(rows) <= limit
    if rows < most:
        assert need.at(rows + 1) > limit


@given(st.lists(_NEEDS, min_size=1, max_size=4), st.integers(0, 20 * GB))
def test_batches_of_several_models_fit_together_and_no_one_could_be_larger(listed, left) -> None:
    needs = {f"m{at}": need for at, need in enumerate(listed)}
    most = dict.fromkeys(needs, 256)
    (card,) = plan(needs, rooms(left), most).fits
    if not card.replicas:
        assert worker_need(needs, dict.fromkeys(needs, 1)) > left
        assert set(card.batches.values()) == {0}
        return
    assert card.share == worker_need(needs, card.batches)
    assert card.share * card.replicas <= left
    for name, rows in card.batches.items():
        assert 1 <= rows <= 256
        if rows < 256:
            assert worker_need(needs, {**card.batches, name: rows + 1}) > left


def test_a_plan_in_words() -> None:
    resnet = measured([(16, 214 * MB), (64, 554 * MB)], 98 * MB, MB)
    found = plan({"resnet": resnet}, rooms(40 * GB, 2 * GB), {"resnet": 256}, limit=8 * GB)
    assert [card.batches["resnet"] for card in found.fits] == [256, 142]
    assert [card.replicas for card in found.fits] == [13, 1]
    assert found.table().splitlines() == [
        "card      left  model   weights   a row  largest batch  worker  workers",
        "gpu:0  40.0 GB  resnet    98 MB  8.1 MB            256  3.0 GB       13",
        "gpu:1   2.0 GB  resnet    98 MB  8.1 MB            142  2.0 GB        1",
    ]
    found.require()


def test_programs_are_counted_for_the_sizes_that_there_will_be() -> None:
    need = Need(GB, program=GB, ladder=(1, 16, 64))
    assert need.at(64) - need.at(16) == need.at(16) - need.at(1) == GB
    (card,) = plan({"m": need}, rooms(20 * GB)).fits
    assert card.batches == {"m": 64}  # no larger than its ladder
    assert largest_batch(need, need.at(64) - 1) == 63
    with pytest.raises(DeviceMemoryError, match=r"weights 1\.0 GB, in a compiled program 1\.0 GB"):
        plan({"m": need}, rooms(2 * GB)).require()


def test_a_limit_that_is_too_small_is_named() -> None:
    need = Need(100 * MB)
    with pytest.raises(DeviceMemoryError, match=r"to spare\); gpu_memory is 512 MB$"):
        plan({"m": need}, rooms(40 * GB), limit=512 * MB).require()
    with pytest.raises(DeviceMemoryError, match=r"gpu_memory is 512 MB; gpu:0 .*: 600 MB left"):
        plan({"m": need}, rooms(600 * MB), limit=512 * MB).require()
    with pytest.raises(DeviceMemoryError, match=r"to spare\); gpu:0 .*: 600 MB left"):
        plan({"m": need}, rooms(600 * MB), limit=GB).require()


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    need = Need(2 * GB, 0, 100 * MB)
    found = plan({"big": need}, rooms(40 * GB, 2 * GB))
    assert [card.replicas for card in found.fits] == [1, 0]
    assert "no room" in found.table()
    with pytest.raises(DeviceMemoryError) as refused:
        found.require()
    assert str(refused.value) == (
        "big needs 3.0 GB of a GPU's memory to run one row (CUDA and its libraries 700 MB; "
        "big: weights 2.0 GB, a row 100 MB; 8% of TensorFlow's memory to spare); "
        "gpu:1 (Fake, GPU-1): 2.0 GB left of 80.0 GB, 2.0 GB unused, nothing promised"
    )


def test_what_was_never_measured(tmp_path) -> None:
    plain, trained = tmp_path / "a.keras", tmp_path / "b.keras"
    for path, config in ((plain, {}), (trained, {"compile_config": {"optimizer": "adam"}})):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("config.json", json.dumps(config))
            archive.writestr("model.weights.h5", bytes(9000))
    (tmp_path / "c.h5").write_bytes(bytes(6000))
    variables = tmp_path / "d" / "variables"
    variables.mkdir(parents=True)
    (variables / "variables.data-00000-of-00001").write_bytes(bytes(3000))
    (variables / "variables.index").write_bytes(bytes(500))
    (tmp_path / "e.keras").write_text("no archive")
    places = [plain, trained, tmp_path / "c.h5", tmp_path / "d", tmp_path / "e.keras", "m:f"]
    assert [estimate(path).weights for path in places] == [9000, 3000, 2000, 1000, 0, 0]
    assert not estimate(plain).measured
    found = plan({"a": estimate(plain)}, rooms(GB))
    assert "?" in found.table()
    with pytest.raises(DeviceMemoryError, match="a needs at least 700 MB"):
        plan({"a": estimate(plain)}, rooms(600 * MB)).require()
    with pytest.raises(DeviceMemoryError, match=r"that need no GPU: devices='cpu'$"):
        plan({"f": estimate("m:f")}, rooms(600 * MB)).require()
