"""What a first start does on a GPU, played on the CPU: only its memory is a fake."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import Model
from tests.model.networks import graph_of, network
from tests.model.tensorflow_process import in_tensorflow

MB = 1 << 20


class FakeMemory:
    """A card of so many MB, of which every batch takes 1 MB a row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit * MB
        self.rows = 0

    def limit(self) -> int:
        return self._limit

    def held(self) -> int:
        return 10 * MB

    def forget(self) -> None:
        self.rows = 0

    def peak(self) -> int:
        return (10 + self.rows) * MB


def _found(limit: int, **settings: Any) -> tuple[Any, list[str], set[int]]:
    from penstock.model.cache import Entry
    from penstock.model.examine import Examination
    from penstock.model.modes import Modes

    memory = FakeMemory(limit)
    sizes: set[int] = set()

    class Counting(Modes):
        def run(self, mode: str, shapes: Any) -> Any:
            run = super().run(mode, shapes)
            memory.rows = max(memory.rows, shapes[0][0])
            sizes.add(shapes[0][0])
            return run

    said: list[str] = []
    model = Model(network("dense"), **settings)
    graph = graph_of(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.model.examine.Modes", Counting)
        examination = Examination(
            graph, Counting(graph), model, "GPU", memory=memory, tell=said.append
        )
        return examination.findings(Entry({})), said, sizes


@in_tensorflow
def test_sizes_are_searched_within_the_memory_there_is() -> None:
    found, said, sizes = _found(100)
    assert found.searched
    assert max(sizes) <= 82  # 92 of 100 MB, less the 10 that are held
    assert found.max_batch <= 82
    assert found.ladder[0] == 1
    assert found.ladder[-1] == found.max_batch
    assert found.memory["per_row"] == pytest.approx(MB)
    assert found.memory["fixed"] == pytest.approx(10 * MB)
    assert found.rates[str(found.max_batch)] > 0
    assert said[:2] == ["memory at 4 and 16 rows", "compile modes at 1 and 64 rows"]
    measured = [text for text in said if text.startswith("measuring batches of")]
    assert 1 <= len(measured) <= 6


@in_tensorflow
def test_what_the_settings_say_is_not_searched_for() -> None:
    found, said, _ = _found(1000, max_batch=4, compile="frozen")
    assert not found.searched
    assert found.max_batch == 4
    assert found.reasons["max_batch"] == "the settings say so"
    assert not [text for text in said if text.startswith("measuring")]
    assert found.memory["per_row"] == pytest.approx(MB)
    assert found.rates["4"] > 0


@in_tensorflow
def test_precision_is_chosen_before_sizes_are() -> None:
    found, said, _ = _found(50, precision="auto", compile="frozen", tolerance=0.5)
    assert found.precision in ("float32", "mixed_bfloat16", "mixed_float16")
    assert found.drift.keys() == {"mixed_bfloat16", "mixed_float16"}
    tried = [text for text in said if text.startswith(("precision", "measuring"))]
    assert tried[0].startswith("precision mixed_bfloat16")
    assert tried[1].startswith("precision mixed_float16")
    assert all(text.startswith("measuring") for text in tried[2:])
    assert found.rates.keys() >= {str(found.max_batch)}


@in_tensorflow
def test_a_batch_that_cannot_fit_is_cut_and_the_numbers_told() -> None:
    found, _, sizes = _found(30, max_batch=64, compile="frozen")
    assert found.max_batch == 16  # of 92 % of 30 MB, less the 10 that are held
    assert max(sizes) == 16
    (note,) = found.notes
    assert note.startswith("a batch of 64 rows needs 74 MB of the device's memory")
