"""What a first start does on a GPU, played on the CPU: only its memory is a fake."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
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
    examination, found, said, sizes = _examined(limit, 0, **settings)
    assert examination.lasting == (found.max_batch >= settings.get("max_batch", 0))
    return found, said, sizes


def _examined(
    limit: int, each: int, disk_is_full: bool = False, **settings: Any
) -> tuple[Any, Any, list[str], set[int]]:
    """`each`: the MB that a row really takes, of every call that is in flight (0: nothing)."""
    import tensorflow as tf

    from penstock.model import pace
    from penstock.model.cache import Entry
    from penstock.model.examine import Examination
    from penstock.model.modes import Modes

    memory = FakeMemory(limit)
    sizes: set[int] = set()

    class Counting(Modes):
        def run(self, mode: str, shapes: Any, land: bool | None = None) -> Any:
            run = super().run(mode, shapes, land)
            memory.rows = max(memory.rows, shapes[0][0])
            sizes.add(shapes[0][0])
            return lambda tensors: limited(mode, run, tensors)

    def limited(mode: str, run: Any, tensors: list[Any]) -> Any:
        if disk_is_full and mode.endswith("xla"):
            raise tf.errors.ResourceExhaustedError(None, None, "x.pb; No space left on device")
        calls = 1 if threading.current_thread() is threading.main_thread() else pace.IN_FLIGHT
        if each and 10 + each * len(tensors[0]) * calls > limit:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
        return run(tensors)

    said: list[str] = []
    model = Model(network("dense"), **settings)
    graph = graph_of(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.model.examine.Modes", Counting)
        examination = Examination(
            graph, Counting(graph), model, "GPU", memory=memory, tell=said.append
        )
        return examination, examination.findings(Entry({})), said, sizes


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


# ── memory that is short while it is examined says nothing of the model ─────────────────────────


@pytest.mark.parametrize("settings", [{}, {"compile": "frozen"}, {"precision": "mixed_bfloat16"}])
@in_tensorflow
def test_what_fits_only_once_at_a_time_is_timed_alone(settings: dict[str, Any]) -> None:
    examination, found, _, sizes = _examined(100, 1, max_batch=64, **settings)
    assert max(sizes) == 64
    assert found.max_batch == 64
    assert found.rates["64"] > 0
    assert isinstance(found.modes[found.mode], dict)
    assert found.notes == []
    assert examination.lasting


@pytest.mark.parametrize("compile", ["auto", "frozen"])
@in_tensorflow
def test_a_largest_size_that_does_not_fit_is_halved_until_it_does(compile: str) -> None:
    examination, found, _, _ = _examined(100, 3, max_batch=64, compile=compile)
    assert found.max_batch == 16
    assert isinstance(found.modes[found.mode], dict)
    (note,) = found.notes
    assert note.startswith("a batch of 64 rows did not fit into the device's memory in any mode")
    assert not examination.lasting


@in_tensorflow
def test_rows_are_independent_though_four_of_them_do_not_fit() -> None:
    examination, found, _, sizes = _examined(100, 30)
    assert found.unbatched == ""
    assert found.max_batch in (1, 2)
    assert max(sizes) == 4  # nothing larger is tried once that is known
    assert not examination.lasting


@in_tensorflow
def test_where_only_single_rows_fit_they_are_run_so_this_time() -> None:
    examination, found, _, _ = _examined(100, 60)
    assert found.unbatched == "there is too little memory on the device to run two rows at a time"
    assert not examination.lasting


@in_tensorflow
def test_a_model_of_which_no_row_fits_is_refused() -> None:
    from penstock.model.shortage import is_out_of_memory

    with pytest.raises(Exception, match="OOM") as refused:
        _examined(100, 200)
    assert is_out_of_memory(refused.value)


@in_tensorflow
def test_a_disk_too_full_for_xlas_programs_is_no_lack_of_memory() -> None:
    examination, found, _, _ = _examined(100, 1, disk_is_full=True, max_batch=64)
    assert found.max_batch == 64
    assert found.mode in ("function", "frozen")
    assert "No space left" in found.modes["frozen-xla"]
    assert not examination.lasting
    with pytest.raises(ModelLoadError, match=r"'frozen-xla' cannot be had: .*No space left"):
        _examined(100, 1, disk_is_full=True, max_batch=64, compile="frozen-xla")
