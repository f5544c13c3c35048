"""The sizes that a start begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.config import Model
from penstock.devices.limit import ROWS
from penstock.model.beginning import beginning
from penstock.model.findings import Findings
from penstock.spec import TensorSpec

LADDER = [1, 16, 32, 64, 128, 256, 512, 1024]
NETWORK = {"fixed": 178496448, "per_row": 9905668}  # ResNet-50's, on a card
IMAGE = (TensorSpec("uint8", (224, 224, 3)),)
TEXT = (TensorSpec("string", ()),)
MB = 1 << 20


def _findings() -> Findings:
    return Findings("frozen-xla", ladder=LADDER, max_batch=1024, memory=dict(NETWORK))


def test_all_of_them_where_there_is_room() -> None:
    assert beginning(_findings(), Model("m:f"), IMAGE, 0) == tuple(LADDER)


def test_where_memory_cuts_the_ladder_it_ends_with_a_size_that_was_compiled_before() -> None:
    def sizes(
        limit: int, mode: str = "frozen-xla", ladder: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        findings = replace(_findings(), mode=mode)
        return beginning(findings, Model("m:f", ladder=ladder), IMAGE, limit)

    assert sizes(2673 * MB) == (1, 16, 32, 64, 128)  # and not 224, which XLA would have to compile
    assert sizes(2673 * MB, "frozen") == (1, 16, 32, 64, 128, 224)
    assert sizes(2673 * MB, ladder=(1, 512)) == (1, 224)  # one row would be far less
    assert sizes(207 * MB) == (1, 2)


def test_beside_other_models_they_end_where_the_engine_has_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ROWS, '{"one": 300, "another": 100}')
    for given, sizes in (((), (1, 16, 32, 64, 128, 256)), ((1, 512), (1, 256))):
        model = Model("m:f", name="one", ladder=given)
        assert beginning(_findings(), model, IMAGE, 0) == sizes
    assert beginning(_findings(), Model("m:f", name="third"), IMAGE, 0) == tuple(LADDER)


def test_the_largest_alone_is_no_larger_than_a_request() -> None:
    largest = Model("m:f", warm="largest")
    assert beginning(_findings(), largest, IMAGE, 0) == (512,)
    assert beginning(_findings(), largest, TEXT, 0) == (1024,)
    small = (TensorSpec("float32", (8,)),)
    assert beginning(_findings(), largest, small, 0) == (1024,)
    unknown = (TensorSpec("uint8", (None, 224, 3)),)
    assert beginning(_findings(), largest, unknown, 0) == (1024,)
    for warm in ("largest", "256"):
        named = Model("m:f", warm=warm, max_batch=1024)
        assert beginning(_findings(), named, IMAGE, 0) == (1024,)


def test_one_size_up_to_a_number_of_rows() -> None:
    for warm, size in (("256", 256), ("300", 256), ("5000", 512), ("1", 1)):
        assert beginning(_findings(), Model("m:f", warm=warm), IMAGE, 0) == (size,)
    large = replace(_findings(), ladder=[1024], max_batch=1024)
    assert beginning(large, Model("m:f", warm="256"), IMAGE, 0) == (256,)
