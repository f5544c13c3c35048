"""Models on devices of their own, tried without one: where outputs go, and what does not fit."""

from __future__ import annotations

import json
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import COMPILE_MODES, Model
from penstock.errors import DeviceMemoryError
from penstock.model.findings import Findings
from penstock.model.peak import NoMemory
from penstock.spec import TensorSpec
from penstock.transport import messages as m
from penstock.transport import wire
from tests.conditions import until
from tests.model.graphs import aligned, compiled, graph, rewrite
from tests.model.networks import graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow
from tests.worker.slots import ClientMemory

OUTPUT = (TensorSpec("float32", (3,)),)


@pytest.mark.parametrize("kind", ["dense", "two"])
@in_tensorflow
def test_outputs_that_land_on_the_host_are_the_same_in_every_mode(kind: str) -> None:
    import tensorflow as tf

    from penstock.model.modes import Modes, shapes_of

    made = graph_of(Model(network(kind)))
    rows = rows_for(kind, 4)
    given = [tf.constant(rows[spec.name]) for spec in made.inputs]
    answers: list[list[Any]] = []
    for lands in (False, True):
        modes = Modes(made)
        modes.lands = lands
        for mode in COMPILE_MODES:
            run = modes.run(mode, shapes_of(given))
            answers.append([tensor.numpy() for tensor in run(given)])
            operations = run.function.graph.get_operations()
            copies = [each for each in operations if each.type == "Identity"]
            assert any("CPU:0" in copy.device for copy in copies) == lands
    for answer in answers[1:]:
        for one, other in zip(answer, answers[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    modes.settle("frozen")  # what lands is kept with what it is made of
    again = [tensor.numpy() for tensor in modes.run("frozen", shapes_of(given))(given)]
    np.testing.assert_allclose(again[0], answers[0][0], rtol=1e-4, atol=1e-5)


@in_tensorflow
def test_answers_come_by_the_quicker_way_and_are_the_same_by_both() -> None:
    made = compiled(graph(lambda x: x * 2), compile="xla", max_batch=4)
    calls = made._calls
    calls.modes.lands = True
    taken: list[bool] = []
    whole = calls.modes.run

    def run(mode: str, shapes: Any, land: bool | None = None) -> Any:
        inner = whole(mode, shapes, land)
        taken.append(bool(land))
        return inner

    calls.modes.run = run
    assert made.warm_up()
    assert {True, False} <= set(taken)  # both were tried
    x = aligned(np.arange(6, dtype=np.float32).reshape(2, 3))
    for fetched in (set(), {((2, 3),)}):
        calls._fetched = fetched
        calls.take(calls.modes, calls.mode)
        assert made(x, 2)[1][0].tolist() == (x * 2).tolist()
        assert taken[-1] == (not fetched)


@in_tensorflow
def test_what_tensorflow_keeps_on_the_host() -> None:
    from penstock.model.handover import stays_on_device
    from penstock.transport.tensors import numpy_dtype

    names = ("uint8", "int64", "float16", "bfloat16", "float32", "complex64")
    assert all(stays_on_device(numpy_dtype(name)) for name in names)
    assert not any(stays_on_device(numpy_dtype(name)) for name in ("int32", "bool", "string"))


def _exhausted(by_xla: bool = False) -> Exception:
    import tensorflow as tf

    if by_xla:
        text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes\nmore"
        return tf.errors.InternalError(None, None, text)
    return tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\nmore")


def _small(made: Any, most: int, by_xla: bool = False) -> list[int]:
    """From now on batches of more rows are too large for the device; returns what is tried."""
    tried: list[int] = []
    calls = made._calls
    whole = calls.modes.run

    def run(mode: str, shapes: Any, land: bool | None = None) -> Any:
        inner = whole(mode, shapes, land)

        def limited(tensors: list[Any]) -> Any:
            tried.append(len(tensors[0]))
            if len(tensors[0]) > most:
                raise _exhausted(by_xla)
            return inner(tensors)

        return limited

    calls.modes.run = run
    calls.take(calls.modes, calls.mode)
    return tried


def _begin_again(made: Any) -> None:
    """Sizes are decided on and warmed as at a start that knows what this one has found out."""
    preparation = made._preparation
    preparation._begin(preparation._findings, preparation._samples)


def _doubled(**settings: Any) -> Any:
    return compiled(graph(lambda x: x * 2), compile="xla", max_batch=32, **settings)


@pytest.mark.parametrize("by_xla", [False, True])
@in_tensorflow
def test_a_batch_that_does_not_fit_cuts_the_ladder_below_it(by_xla: bool) -> None:
    made = _doubled()
    assert made.warm_up()
    tried = _small(made, 8, by_xla)
    x = aligned(np.ones((20, 3), np.float32))
    with pytest.raises(DeviceMemoryError, match="a batch of 32 rows needs more memory"):
        made(x, 20)
    assert made.changed
    facts = made.facts()
    assert facts["ladder"] == [1, 2, 4, 8, 16]
    assert facts["max_batch"] == 16
    with pytest.raises(DeviceMemoryError, match="20 rows: the device has memory for 16"):
        made(x, 20)  # it is not tried again
    with pytest.raises(DeviceMemoryError):
        made(x[:9], 9)
    assert tried == [32, 32, 16, 16]  # the second time alone, without others beside it
    _, (output,) = made(x[:5], 5)
    assert output.tolist() == [[2.0] * 3] * 5
    assert made.facts()["max_batch"] == 8
    made._shorten(32)  # a larger one that was on its way ends later
    assert made.facts()["max_batch"] == 8


@in_tensorflow
def test_what_does_not_fit_beside_another_model_is_run_alone() -> None:
    one, other = _doubled(), _doubled()
    going, leave = threading.Event(), threading.Event()
    whole = one._calls.modes.run

    def besides(mode: str, shapes: Any, land: bool | None = None) -> Any:
        inner = whole(mode, shapes, land)

        def limited(tensors: list[Any]) -> Any:
            if going.is_set():
                leave.set()
                raise _exhausted()
            return inner(tensors)

        return limited

    def long(mode: str, shapes: Any, land: bool | None = None) -> Any:
        inner = whole(mode, shapes, land)

        def runs(tensors: list[Any]) -> Any:
            going.set()
            assert leave.wait(20)
            answer = inner(tensors)
            going.clear()
            return answer

        return runs

    for made, run in ((one, besides), (other, long)):
        made._calls.modes.run = run
        made._calls.take(made._calls.modes, made._calls.mode)
    x = aligned(np.ones((32, 3), np.float32))
    thread = threading.Thread(target=other, args=(x, 32))
    thread.start()
    assert going.wait(20)
    assert one(x, 32)[1][0].tolist() == [[2.0] * 3] * 32
    thread.join(20)
    assert not one.changed


@pytest.mark.parametrize("settings", [{}, {"ladder": (1, 4, 8, 16, 32)}], ids=["", "ladder"])
@in_tensorflow
def test_the_next_start_knows_what_did_not_fit(tmp_path: Path, settings: dict[str, Any]) -> None:
    def started() -> Any:
        return compiled(call, compile="xla", **({"max_batch": 32} | settings))

    call = graph(lambda x: x * 2, key="abc")
    x = aligned(np.ones((32, 3), np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path))
        made = started()
        _small(made, 8)
        for rows in (32, 16):
            with pytest.raises(DeviceMemoryError):
                made(x[:rows], rows)
        made.warm_up()  # which writes what it has found, too
        again = started()
        assert again.cached
        assert again.facts()["max_batch"] == 8
        assert again.facts()["rungs"][-1] == 8
        assert "the device's memory" in again.facts()["reasons"]["max_batch"]
        _small(again, 4)
        _begin_again(again)
        rewrite(again)
        assert started().facts()["max_batch"] == 4


@in_tensorflow
def test_what_did_not_fit_on_a_card_says_nothing_of_another_of_its_name(tmp_path: Path) -> None:
    from penstock.model.compiled import Compiled
    from penstock.model.plans import known_need

    model = Model(tmp_path / "net.keras", compile="frozen-xla", max_batch=32)
    network("dense").save(model.source)
    memory = {"held": 10, "fixed": 30, "per_row": 7, "buffers_per_row": 2, "limit": 0}

    def started(card: str) -> Any:
        patch.setenv("CUDA_VISIBLE_DEVICES", card)
        return Compiled(graph_of(model), model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        first = started("GPU-a")
        rewrite(first, memory=memory)
        small, large = started("GPU-a"), started("GPU-b")
        _small(small, 16)
        x = aligned(np.ones((32, *small.spec.inputs[0].shape), np.float32))
        patch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
        with pytest.raises(DeviceMemoryError):
            small(x, 32)
        small.warm_up()
        patch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
        large.warm_up()
        for card, most in (("GPU-a", 16), ("GPU-b", 32), ("GPU-a", 16)):
            again = started(card)
            assert again.cached
            assert again.facts()["max_batch"] == most
            assert known_need(model, card).ladder[-1] == most
        stored = [*(tmp_path / "cache").rglob("*.graph")]
        assert len(stored) == 1  # which has the weights in it


def test_findings_that_were_cut_are_made_anew_when_there_is_more_memory() -> None:
    memory = {"held": 0, "fixed": 100, "per_row": 10, "limit": 1000}
    whole = Findings("frozen", max_batch=64, ladder=[1, 8, 32, 64], memory=memory)
    assert not whole.outgrown(5000)
    made = whole.cut(32, 800)
    assert (made.max_batch, made.ladder, made.memory["limit"]) == (32, [1, 8, 32], 800)
    assert not made.outgrown(800)
    assert made.outgrown(1200)
    assert made.sizes((1, 16, 64)) == (1, 16)
    assert made.sizes((64,)) == (32,)
    assert whole.sizes((1, 128)) == (1, 128)


@in_tensorflow
def test_a_worker_leaves_what_it_needs_where_engines_look_beforehand(tmp_path: Path) -> None:
    from penstock.model.compiled import Compiled
    from penstock.model.plans import known_need, likely_need, noted_needs

    model = Model(tmp_path / "net.keras", compile="frozen-xla", max_batch=32)
    network("dense").save(model.source)

    def started() -> Any:
        return Compiled(graph_of(model), model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
        first = started()
        memory = {"held": 10, "fixed": 30, "per_row": 7, "buffers_per_row": 2, "limit": 0}
        rewrite(first, memory=memory)
        assert not known_need(model, "GPU-a").measured  # nobody has said where that is
        made = started()
        made.warm_up()
        need = known_need(model, "GPU-a")
        assert (need.weights, need.fixed, need.per_row, need.buffers_per_row) == (10, 20, 7, 2)
        assert (need.program, need.ladder) == (10, (1, 2, 4, 8, 16, 32))
        assert likely_need(model, "GPU-a") == need
        assert noted_needs("GPU-a") == {"net": need}
        assert not known_need(model, "GPU-b").measured
        assert noted_needs("GPU-b") == {}
        _small(made, 16)
        x = aligned(np.ones((32, *made.spec.inputs[0].shape), np.float32))
        with pytest.raises(DeviceMemoryError):
            made(x, 32)
        assert known_need(model, "GPU-a").ladder[-1] == 16  # and it is corrected


@in_tensorflow
def test_it_is_cut_no_further_than_that_before_all_sizes_are_warm() -> None:
    made = _doubled()
    assert made.facts()["ladder"] == [1, 32]
    tried = _small(made, 16)
    x = aligned(np.ones((20, 3), np.float32))
    with pytest.raises(DeviceMemoryError):
        made(x, 20)
    assert made.facts()["max_batch"] == 16
    made(x[:5], 5)
    assert tried == [32, 32, 8]  # a size of the ladder, though not a warm one
    assert made.warm_up()
    assert made.facts()["ladder"] == [1, 2, 4, 8, 16]
    assert max(tried[2:]) == 16  # what does not fit is not warmed up


@in_tensorflow
def test_a_batch_for_a_larger_card_is_taken_apart_and_nothing_compiled_for_it() -> None:
    """An engine sends what its last card takes; a smaller one has never warmed that size."""
    made = _doubled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.model.preparation.memory_of", lambda device: NoMemory())
        made._preparation.device = "GPU"
        _begin_again(made)
        tried = _small(made, 1000)
        x = aligned(np.ones((64, 3), np.float32))
        with pytest.raises(DeviceMemoryError, match="64 rows: the device has memory for 32"):
            made(x, 64)
        assert tried == []
        assert len(made(x[:32], 32)[1][0]) == 32
        assert made.facts()["max_batch"] == 32
        assert not made.changed


@in_tensorflow
def test_a_start_warms_the_largest_size_that_fits() -> None:
    made = _doubled()
    tried = _small(made, 4)
    _begin_again(made)
    assert made.facts()["rungs"] == [1, 2, 4]
    assert made.facts()["ladder"] == [1, 4]
    assert made.max_batch == 4
    assert made.facts()["max_batch"] == 4
    assert max(tried) == 32
    x = aligned(np.ones((3, 3), np.float32))
    assert made(x, 3)[1][0].tolist() == [[2.0] * 3] * 3
    _small(made, 0)
    with pytest.raises(DeviceMemoryError):
        _begin_again(made)


@in_tensorflow
def test_where_a_failure_leaves_memory_behind_the_next_worker_knows_what_did_not_fit(
    tmp_path: Path,
) -> None:
    """Only the end of the process gives that back: smaller sizes are not tried in it."""
    from penstock.devices.limit import SQUEEZED

    tried: list[int] = []

    class Leaking(NoMemory):
        def held(self) -> int:
            return 900 if max(tried, default=0) > 4 else 100

    call = graph(lambda x: x * 2, key="left behind")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path))
        patch.setenv("PENSTOCK_WORKER", "0")
        made = compiled(call, compile="xla", max_batch=32)
        patch.setattr("penstock.model.preparation.memory_of", lambda device: Leaking())
        tried = _small(made, 4)
        with pytest.raises(DeviceMemoryError):
            _begin_again(made)
        assert max(tried) == tried[-1] == 32
        again = compiled(call, compile="xla", max_batch=32)
        assert again.cached
        assert again.facts()["rungs"] == [1, 2, 4, 8, 16]
        patch.setenv(SQUEEZED, "2")  # there is no next one
        tried = _small(again, 4)
        _begin_again(again)
        assert again.facts()["rungs"] == [1, 2, 4]


@in_tensorflow
def test_a_batch_that_did_not_fit_is_gone_when_memory_is_looked_at() -> None:
    """A worker would think that it lies there for good, and end."""
    batches: list[Any] = []
    alive: list[int] = []

    class Looked(NoMemory):
        def held(self) -> int:
            alive.append(sum(batch() is not None for batch in batches))
            return 100

    made = _doubled()
    _small(made, 4)
    samples = made._preparation._samples
    rows = samples.rows

    def noted(size: int) -> Any:
        arrays = [np.array(array) for array in rows(size)]
        batches.extend(weakref.ref(array) for array in arrays)
        return arrays

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "rows", noted)
        patch.setattr("penstock.model.preparation.memory_of", lambda device: Looked())
        _begin_again(made)
    assert made.facts()["rungs"] == [1, 2, 4]
    assert len(alive) == 7  # before and after 32, 16 and 8 rows, and before 4
    assert not any(alive)


@pytest.mark.parametrize("by_xla", [False, True])
@in_tensorflow
def test_a_model_that_does_not_fit_at_all_is_no_model_that_is_broken(
    tmp_path: Path, by_xla: bool
) -> None:
    from penstock.model.load import load

    path = tmp_path / "model.keras"
    network("dense").save(path)

    def full(*arguments: Any, **options: Any) -> Any:
        raise _exhausted(by_xla)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path))
        patch.setattr("penstock.model.preparation.Preparation._found_out", full)
        with pytest.raises(DeviceMemoryError, match="does not fit: its device has too little"):
            load(Model(str(path)))


@in_tensorflow
def test_where_nothing_is_padded_it_is_cut_to_half() -> None:
    made = compiled(graph(lambda x: x * 2), compile="function", max_batch=32)
    _small(made, 6)
    x = aligned(np.ones((32, 3), np.float32))
    for rows, most in ((32, 16), (12, 6)):
        with pytest.raises(DeviceMemoryError):
            made(x[:rows], rows)
        assert made.facts()["max_batch"] == most
        assert made.facts()["ladder"] == []
    assert len(made(x[:6], 6)[1][0]) == 6


@in_tensorflow
def test_a_worker_answers_it_in_parts_and_tells() -> None:
    from penstock.transport.channel import Channel, pair
    from penstock.worker.loop import Worker
    from penstock.worker.warmup import Ready

    made = _doubled()
    made.warm_up()
    _small(made, 8)
    ours, theirs = pair()
    channel = Channel(ours)
    worker = Worker(Channel(theirs), [Ready(made)])
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    memory = ClientMemory()
    x = np.random.default_rng(3).random((30, 3), np.float32)
    signature, item = memory.write(x)
    channel.send(wire.encode(m.MapSegment(1, 1, memory.size)), [memory.descriptor])
    channel.send(wire.encode(m.RunLayout(1, 0, signature)))
    for batch in (1, 2):
        channel.send(wire.encode_run(batch, 1, [m.RUN_ITEM.pack(*item)])[0])
        told: list[Any] = []
        while not told or not isinstance(told[-1], m.Ran):
            told.append(wire.decode(until(channel.receive)[0]))
        answered = np.full((30, 3), np.nan)
        for part in (record for record in told if isinstance(record, m.ItemPart)):
            (got,) = memory.read(item, OUTPUT, part.start, part.rows)
            answered[part.start : part.start + part.rows] = got
        np.testing.assert_array_equal(answered, x * 2)
        facts = [json.loads(each.data) for each in told if isinstance(each, m.ModelFacts)]
        assert [each["max_batch"] for each in facts] == ([8] if batch == 1 else [])
    channel.send(wire.encode(m.Stop(0.0)))
    thread.join(20)
    channel.close()
    theirs.close()
    memory.close()
