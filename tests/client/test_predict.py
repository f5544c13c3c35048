"""Rows in, rows out, through a real engine: every kind of array, and every way to fail."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import InputError, ModelError, PenstockError, RemoteTraceback, RowsFailed
from penstock.spec import DTYPES, STRING
from penstock.transport.tensors import numpy_dtype
from tests.client.conftest import model

_FIXED = sorted(set(DTYPES) - {STRING})


@pytest.mark.parametrize("dtype", _FIXED)
@pytest.mark.parametrize("shape", [(5,), (3, 4, 2), (2, 0), (0, 7), (33,), (1,)])
def test_every_dtype_comes_back(
    client: penstock.Client, dtype: str, shape: tuple[int, ...]
) -> None:
    x = np.arange(np.prod(shape)).reshape(shape) % 2
    sent = x.astype(numpy_dtype(dtype))
    got = client.predict(sent, model="identity")
    assert got.dtype == sent.dtype
    assert got.shape == sent.shape
    assert got.tolist() == sent.tolist()


@pytest.mark.parametrize(
    "x",
    [
        np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
        np.arange(60.0).reshape(5, 12).T,
        np.arange(60.0).reshape(5, 12)[::-2],
        np.asfortranarray(np.arange(60).reshape(5, 12)),
        np.arange(60, dtype=">i4").reshape(12, 5),
        np.broadcast_to(np.arange(3), (4, 3)),
        np.ma.array([1, 2, 3]),
        [[1, 2], [3, 4]],
        [True, False],
        range(5),
    ],
)
def test_every_memory_order_comes_back(client: penstock.Client, x: Any) -> None:
    got = client.predict(x, model="identity")
    np.testing.assert_array_equal(got, np.asarray(x))
    assert got.dtype.isnative


def test_read_only_arrays_can_be_sent_and_answers_can_be_written(client: penstock.Client) -> None:
    x = np.arange(6.0)
    x.flags.writeable = False
    got = client.predict(x, model="identity")
    got += 1
    np.testing.assert_array_equal(got, np.arange(6.0) + 1)


def test_what_was_submitted_may_be_changed_at_once(client: penstock.Client) -> None:
    x = np.zeros((100, 1_000))
    answer = client.submit(x, model="identity")
    x[:] = 7
    assert not answer.result(30).any()


def test_answers_stay_as_they_are(client: penstock.Client) -> None:
    """They are copies: later calls reuse the slots, not the caller's arrays."""
    kept = [client.predict(np.full((4, 100), n), model="identity") for n in range(20)]
    for number, array in enumerate(kept):
        assert (array == number).all()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), max_size=40))
def test_strings_come_back_as_bytes(client: penstock.Client, words: list[str]) -> None:
    x = np.array(words, object)
    got = client.predict(x, model="identity")
    assert got.tolist() == [word.encode() for word in words]


@pytest.mark.parametrize(
    "words",
    [
        ["", "a", "é𝄞", "nul\0inside"],
        [b"bytes", b"\xff\xfe\x00", b""],
        np.array(["fixed", "width"]),
        np.array([b"fixed", b"width"]),
        np.array([["a", "b"], ["c", "d"]], object),
        ["x" * 3_000_000, "y"],
        [b"\x89PNG\0\0\0", b"\0"],
    ],
)
def test_every_kind_of_string(client: penstock.Client, words: Any) -> None:
    got = client.predict(words, model="identity")
    expected = np.array(words, object)
    encoded = [w.encode() if isinstance(w, str) else w for w in expected.reshape(-1)]
    assert got.shape == expected.shape
    assert got.reshape(-1).tolist() == encoded


def test_several_inputs_and_outputs(client: penstock.Client) -> None:
    rows = 50
    image = np.random.default_rng(0).integers(0, 255, (rows, 4, 6), np.uint8)
    size = np.stack([np.arange(rows), np.arange(rows) + 1], axis=1)
    label = [f"row {n}" for n in range(rows)]
    got = client.predict({"image": image, "size": size, "label": label}, model="described")
    assert list(got) == ["mean", "label", "area", "shape"]
    np.testing.assert_allclose(got["mean"], image.reshape(rows, -1).mean(axis=1), rtol=1e-6)
    assert got["label"].tolist() == [f"row {n}!".encode() for n in range(rows)]
    np.testing.assert_array_equal(got["area"], size[:, 0] * size[:, 1])
    assert got["shape"].tolist() == [[4, 6]] * rows


def test_one_named_input_comes_back_named(client: penstock.Client) -> None:
    got = client.predict({"only": np.arange(3)}, model="identity")
    assert list(got) == ["only"]


def test_answers_larger_than_their_slots(client: penstock.Client) -> None:
    for rows in (1, 32, 100):
        got = client.predict(np.arange(float(rows)), model="grown")
        assert got.shape == (rows, 10_000)
        np.testing.assert_array_equal(got[:, 0], np.arange(rows))
        np.testing.assert_array_equal(got[:, -1], np.arange(rows))


def test_answers_that_grow_with_what_they_hold(client: penstock.Client) -> None:
    for length in (1, 10, 100, 1_000, 3, 0):
        words = ["x" * length, "ab", ""]
        got = client.predict(words, model="repeated")
        assert [len(word) for word in got] == [length * length, 4, 0]


@pytest.mark.parametrize(
    ("model", "rows", "place", "error"),
    [
        ("grown", 1, "client.inbox.segment.Mapping", OSError),
        ("doubled", 1, "transport.tensors.copied", MemoryError),
        ("doubled", 1000, "client.call._filled", MemoryError),
    ],
)
def test_an_answer_for_which_there_is_no_memory_fails_alone(
    client: penstock.Client,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    rows: int,
    place: str,
    error: type[Exception],
) -> None:
    """The connection, and so the calls of other threads, live on."""

    def fail(*_: Any) -> None:
        raise error("Cannot allocate memory")

    client.predict(np.ones(1), model="doubled")
    session = client._session()
    with monkeypatch.context() as patch:
        patch.setattr(f"penstock.{place}", fail)
        with pytest.raises(PenstockError, match=r"the answer cannot be read: .*allocate"):
            client.predict(np.ones(rows), model=model)
        with pytest.raises(PenstockError, match=r"the answer cannot be read: .*allocate"):
            asyncio.run(client.predict_async(np.ones(rows), model=model))  # a thread reads
    assert client._session() is session
    assert client.predict(np.ones(1), model="doubled").tolist() == [2]


def test_outputs_whose_shape_depends_on_what_is_in_them(client: penstock.Client) -> None:
    for size in (0, 1, 7, 1_000, 100_000, 3):
        got = client.predict(np.array([size]), model="as_long_as_told")
        assert got.shape == (1, size)


def test_outputs_that_cannot_be_joined_say_so(client: penstock.Client) -> None:
    with pytest.raises(RowsFailed, match="cannot be joined") as raised:
        client.predict(np.array([3, 3, 5]), model="as_long_as_told")
    assert raised.value.results.shape == (3, 3)
    assert list(raised.value.errors) == [2]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 2, 2)])
def test_no_rows_in_no_rows_out(client: penstock.Client, shape: tuple[int, ...]) -> None:
    got = client.predict(np.zeros(shape, np.float32), model="doubled")
    assert got.shape == shape
    assert got.dtype == np.float32
    assert client.predict(np.empty((0, 2), object), model="identity").shape == (0, 2)


def test_a_row_of_one_byte(client: penstock.Client) -> None:
    assert client.predict(np.array([200], np.uint8), model="checksum").tolist() == [200]


def test_a_row_of_two_hundred_megabytes(client: penstock.Client) -> None:
    x = np.ones((1, 200 << 20), np.uint8)
    x[0, -1] = 5
    assert client.predict(x, model="checksum").tolist() == [(200 << 20) + 4]


def test_a_hundred_thousand_rows_in_little_memory(client: penstock.Client) -> None:
    x = np.arange(100_000 * 64, dtype=np.float32).reshape(100_000, 64)
    got = client.predict(x, model="doubled")
    np.testing.assert_array_equal(got, x + x)
    (own,) = [one for one in client.statistics().clients if one.rows == 100_000]
    assert own.bytes <= x.nbytes / 4
    assert own.outstanding == 0


# ── errors of the caller ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("x", "parts"),
    [
        (
            {"image": np.zeros((3, 2, 5)), "label": ["a"] * 3},
            ["input 'image'", "expected float32 (rows, 2, any)", "got float64 (rows, 2, 5)"],
        ),
        (
            {"image": np.zeros((3, 3, 5), np.float32), "label": ["a"] * 3},
            ["input 'image'", "got float32 (rows, 3, 5)"],
        ),
        ({"image": np.zeros((3, 2, 5), np.float32)}, ["missing 'label'"]),
        (
            {"image": np.zeros((1, 2, 5), np.float32), "label": ["a"], "more": [1]},
            ["unknown 'more'"],
        ),
        (np.zeros((3, 2, 5), np.float32), ["2 inputs", "'image'", "'label'"]),
        ({"image": np.zeros((3, 2, 5), np.float32), "label": ["a"]}, ["1 rows", "3"]),
    ],
)
def test_what_the_model_does_not_take_is_refused_by_name(
    client: penstock.Client, x: Any, parts: list[str]
) -> None:
    with pytest.raises(InputError) as raised:
        client.predict(x, model="typed")
    for part in parts:
        assert part in str(raised.value)


def test_what_the_model_takes_is_taken(client: penstock.Client) -> None:
    got = client.predict({"image": np.zeros((1, 2, 9), np.float32), "label": ["a"]}, model="typed")
    assert got["image"].shape == (1, 2, 9)
    assert client.predict([[1, 2, 3]], model="bare").tolist() == [[2.0, 4.0, 6.0]]
    with pytest.raises(InputError, match=r"expected float32 \(rows, 3\), got float32 \(rows, 4\)"):
        client.predict(np.zeros((1, 4), np.float32), model="bare")


def test_models_are_named(client: penstock.Client) -> None:
    assert "doubled" in client.models()
    with pytest.raises(InputError, match=r"several models.*'identity'"):
        client.predict(np.zeros(1))
    with pytest.raises(InputError, match=r"no model 'nonsense'.*'identity'"):
        client.predict(np.zeros(1), model="nonsense")


def test_a_model_is_described_and_how_its_rows_are_sent(client: penstock.Client) -> None:
    told = client.model_info("bare")
    assert (told.name, told.batched, told.request_rows) == ("bare", True, 0)
    assert told.spec.inputs == (penstock.TensorSpec("float32", (3,), ""),)
    small = client.model_info("bare", np.zeros((1, 3), np.float32))
    assert small.request_rows == small.max_batch == told.max_batch
    large = client.model_info("identity", np.zeros((1, 72 << 20), np.uint8))
    assert large.request_rows == 1, "two of them are more than one request may be"
    with pytest.raises(InputError, match=r"expected float32 \(rows, 3\)"):
        client.model_info("bare", np.zeros((1, 4), np.float32))
    with pytest.raises(InputError, match=r"several models"):
        client.model_info()


@pytest.mark.parametrize("priority", [40_000, -40_000, 1.5, "high", None])
def test_priorities_are_small_whole_numbers(client: penstock.Client, priority: Any) -> None:
    with pytest.raises(InputError, match="priority"):
        client.predict(np.zeros(1), model="identity", priority=priority)
    assert client.predict(np.zeros(1), model="identity").tolist() == [0]


def test_a_caller_is_a_text(client: penstock.Client) -> None:
    with pytest.raises(InputError, match="caller: expected a text, got 17"):
        client.predict(np.ones(1), model="doubled", caller=17)  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline", [float("nan"), "soon"])
def test_deadlines_are_seconds(client: penstock.Client, deadline: Any) -> None:
    with pytest.raises((InputError, TypeError)):
        client.predict(np.zeros(1), model="identity", deadline=deadline)


def test_what_cannot_be_sent_ends_nobodys_connection(client: penstock.Client) -> None:
    answer = client.submit(np.arange(3), model="identity")
    for x in (
        {f"input {n}": np.zeros(1) for n in range(65)},
        np.zeros((1,) * 18),
        {"\ud800": np.zeros(1)},
        ["\ud800"],
        np.zeros(2, "datetime64[s]"),
        {"a": np.zeros(1), "b": np.zeros(2)},
        3,
    ):
        with pytest.raises(InputError):
            client.predict(x, model="identity")
    assert answer.result(30).tolist() == [0, 1, 2]


# ── errors of the model ────────────────────────────────────────────────────────────────────────


def test_a_row_that_raises_fails_alone(client: penstock.Client) -> None:
    x = np.arange(100.0)
    x[[7, 63]] = -1
    with pytest.raises(RowsFailed) as raised:
        client.predict(x, model="picky")
    error = raised.value
    assert sorted(error.errors) == [7, 63]
    assert error.rows == 100
    expected = np.where(x < 0, 0, x * 2)
    np.testing.assert_array_equal(error.results, expected)
    assert isinstance(error.errors[7], ModelError)
    assert str(error.errors[7]) == "ValueError: negative: -1.0"
    assert not error.retryable


def test_a_single_row_that_raises_is_a_model_error_with_its_traceback(
    client: penstock.Client,
) -> None:
    with pytest.raises(ModelError, match=r"^ValueError: negative: -3\.0$") as raised:
        client.predict(np.array([-3.0]), model="picky")
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "in picky" in str(raised.value.__cause__)
    assert "functions.py" in str(raised.value.__cause__)


def test_neighbours_of_a_row_that_raises_are_answered(client: penstock.Client) -> None:
    """Also when they came from other calls and shared its batch."""
    answers = [client.submit(np.array([float(n)]), model="picky") for n in range(-1, 30)]
    with pytest.raises(ModelError):
        answers[0].result(30)
    assert [float(answer.result(30)[0]) for answer in answers[1:]] == [2.0 * n for n in range(30)]


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("one_short", "expected 1 rows, as many as came in, got 0"),
        ("nothing", "expected an array.*NoneType"),
        ("strange", "datetime64"),
        ("many", "outputs"),
    ],
)
def test_outputs_that_cannot_be_sent_are_the_models_fault(
    client: penstock.Client, model: str, complaint: str
) -> None:
    before = client.statistics().deaths
    with pytest.raises(ModelError, match=complaint):
        client.predict(np.ones((3, 2)), model=model)
    assert client.statistics().deaths == before


def test_many_rows_that_fail_with_long_messages(client: penstock.Client) -> None:
    """The messages of one call are bounded too: its client is not taken for one that hangs."""
    with pytest.raises((ModelError, RowsFailed)) as raised:
        client.predict(np.zeros((2_048, 1)), model="wordy")
    assert "ValueError: long long" in str(raised.value)
    assert client.predict(np.zeros(1), model="identity").tolist() == [0]


def test_what_is_not_batched_sees_each_call_whole(client: penstock.Client) -> None:
    first = client.predict(np.zeros(100), model="counting")
    assert first.tolist() == list(range(int(first[0]), int(first[0]) + 100))
    answers = [client.submit(np.zeros(5), model="counting") for _ in range(10)]
    for answer in answers:
        rows = answer.result(30).tolist()
        assert rows == list(range(rows[0], rows[0] + 5))


def test_a_call_that_is_larger_than_the_queue_and_not_batched(client: penstock.Client) -> None:
    x = np.ones(70_000)  # queue_rows is 65,536
    assert len(client.predict(x, model="counting")) == len(x)


def test_batches_are_made_of_several_calls(client: penstock.Client) -> None:
    answers = [client.submit(np.zeros((1, 3)), model="where") for _ in range(64)]
    sizes = [int(answer.result(30)[0, 1]) for answer in answers]
    assert max(sizes) > 1
    assert max(sizes) <= 8


@pytest.mark.parametrize("way", ["predict", "asyncio"])
def test_texts_are_cut_by_their_sizes(way: str) -> None:
    """Together they are more than a client may hold, though their number would fit one batch."""
    rows = [bytes([number]) * 100_000 for number in range(64)]
    x = np.array([*rows, b"short"], object)
    with penstock.Engine(model("identity", max_batch=128), client_memory=4 << 20) as engine:
        got = engine.predict(x) if way == "predict" else asyncio.run(engine.predict_async(x))
    assert got.tolist() == x.tolist()


@pytest.mark.parametrize("queue_rows", [20, 64, 200])
def test_one_call_does_not_fill_the_queue(queue_rows: int) -> None:
    x = np.arange(4 * 5_000, dtype=np.float32).reshape(-1, 4)
    with penstock.Engine(model("doubled", max_batch=32), queue_rows=queue_rows) as engine:
        np.testing.assert_array_equal(engine.predict(x), x + x)
