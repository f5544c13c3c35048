"""Arrays in and out of a slot: every dtype, every memory order, every string, every lie."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.errors import InputError
from penstock.spec import DTYPES, MAX_RANK, MAX_TENSORS, STRING, ModelSpec, TensorSpec, signature_of
from penstock.transport.tensors import (
    ALIGNMENT,
    BadBlock,
    Plan,
    align,
    answer_room,
    collect,
    dtype_name,
    empty_aligned,
    numpy_dtype,
    plan_of,
    structure,
)

_FIXED = sorted(set(DTYPES) - {STRING})
_SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def _bytes_of(array: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).tobytes()


@st.composite
def _fixed_arrays(draw: st.DrawFn, rows: int) -> np.ndarray[Any, Any]:
    """An array of any dtype and order in memory; its bits are arbitrary, NaNs among them."""
    dtype = numpy_dtype(draw(st.sampled_from(_FIXED)))
    shape = (rows, *draw(_SHAPES))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if dtype.name in ("bool", "int4", "uint4"):
        raw = raw & 1  # other bits are no value of these types
    array = raw.view(dtype).reshape(shape)
    how = draw(st.sampled_from(["plain", "fortran", "reversed", "strided", "swapped", "readonly"]))
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if how == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    if how == "swapped" and dtype.isbuiltin == 1:
        return array.astype(dtype.newbyteorder("S"))
    if how == "readonly":
        array = array.copy()
        array.flags.writeable = False
    return array


_ITEMS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    ["", "\0", "a\0", "\0a", "𝄞é", "x" * 5_000]
)


@st.composite
def _string_arrays(draw: st.DrawFn, rows: int) -> np.ndarray[Any, Any]:
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2).map(tuple)))
    array = np.empty(shape, object)
    flat = array.reshape(-1)
    for index in range(flat.size):
        text = draw(_ITEMS)
        flat[index] = text if draw(st.booleans()) else text.encode()
    return array


@st.composite
def _inputs(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    rows = draw(st.integers(0, 5))
    names = draw(
        st.lists(st.text("abcé ", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)
    )
    return {
        name: draw(_string_arrays(rows) if draw(st.integers(0, 3)) == 0 else _fixed_arrays(rows))
        for name in names
    }


def _as_sent(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype == object:
        items = [i.encode() if isinstance(i, str) else i for i in array.reshape(-1)]
        return array.shape, items
    return array.shape, _bytes_of(array)


@given(_inputs(), st.integers(0, 3), st.data())
def test_arrays_come_out_as_they_went_in(
    inputs: dict[str, np.ndarray[Any, Any]], shift: int, data: st.DataObject
) -> None:
    signature, arrays, rows = collect(inputs, ModelSpec())
    plan = plan_of(signature)
    size = plan.size(arrays, 0, rows)
    at = 64 * shift
    memory = bytearray(b"\xaa" * (at + size + 64))
    plan.write(memoryview(memory), at, arrays, 0, rows)
    assert memory[:at] == b"\xaa" * at
    assert memory[at + size :] == b"\xaa" * 64
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    got = plan.read(memoryview(memory), at, at + size, rows, start, stop)
    memory[:] = bytes(len(memory))  # what was read are copies
    for (name, given_array), spec, array in zip(inputs.items(), signature, got, strict=True):
        assert spec.name == name
        assert spec.shape == given_array.shape[1:]
        assert array.dtype == numpy_dtype(spec.dtype)
        assert _as_sent(array) == _as_sent(given_array[start:stop])


@given(_inputs(), st.data())
def test_rows_are_written_from_anywhere(
    inputs: dict[str, np.ndarray[Any, Any]], data: st.DataObject
) -> None:
    signature, arrays, rows = collect(inputs, ModelSpec())
    plan = plan_of(signature)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    size = plan.size(arrays, start, stop)
    memory = bytearray(size)
    plan.write(memoryview(memory), 0, arrays, start, stop)
    got = plan.read(memoryview(memory), 0, size, stop - start, 0, stop - start)
    for array, given_array in zip(got, inputs.values(), strict=True):
        assert _as_sent(array) == _as_sent(given_array[start:stop])


@given(_inputs(), st.integers(0, 200))
def test_a_block_that_is_too_short_is_refused(
    inputs: dict[str, np.ndarray[Any, Any]], missing: int
) -> None:
    signature, arrays, rows = collect(inputs, ModelSpec())
    plan = plan_of(signature)
    size = plan.size(arrays, 0, rows)
    memory = bytearray(size)
    plan.write(memoryview(memory), 0, arrays, 0, rows)
    end = max(0, size - missing)
    try:
        got = plan.read(memoryview(memory)[:end], 0, end, rows, 0, rows)
    except BadBlock:
        assert missing > 0
        return
    for array, given_array in zip(got, inputs.values(), strict=True):  # only padding was cut off
        assert _as_sent(array) == _as_sent(given_array)


@pytest.mark.parametrize("name", _FIXED)
def test_every_dtype_has_its_name_and_size(name: str) -> None:
    dtype = numpy_dtype(name)
    assert dtype.itemsize == DTYPES[name][1]
    assert dtype_name(dtype) == name
    assert dtype_name(dtype.newbyteorder("S")) == name
    assert dtype_name(np.zeros(3, dtype).dtype) == name


def test_other_names_of_the_same_dtypes() -> None:
    assert dtype_name(np.dtype(np.longlong)) == "int64"
    assert dtype_name(np.dtype(np.ulonglong)) == "uint64"
    assert dtype_name(np.dtype(np.intp)) == "int64"
    assert dtype_name(np.dtype("b")) == "int8"
    assert dtype_name(np.dtype(ml_dtypes.bfloat16)) == "bfloat16"


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, "timedelta64[s]"),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.zeros(2, "V7"),
        np.zeros(2, np.longdouble),
        np.zeros(2, ml_dtypes.float8_e4m3b11fnuz),
        np.zeros(2, ml_dtypes.int2),
    ],
)
def test_other_dtypes_are_refused_by_name(array: np.ndarray[Any, Any]) -> None:
    for x, label in ((array, "the input"), ({"when": array}, "input 'when'")):
        with pytest.raises(InputError) as raised:
            collect(x, ModelSpec())
        assert label in str(raised.value)
        assert str(array.dtype) in str(raised.value)
        assert "float32" in str(raised.value)


@pytest.mark.parametrize("item", [1, None, 2.5, [b"a"], bytearray(b"a"), object()])
def test_objects_that_are_no_strings_are_refused(item: object) -> None:
    array = np.empty(2, object)
    array[0] = "fine"
    array[1] = item
    with pytest.raises(InputError, match=rf"input 'words'.*text or bytes.*{type(item).__name__}"):
        collect({"words": array}, ModelSpec())


def test_text_that_has_no_utf8_is_refused() -> None:
    with pytest.raises(InputError, match="input 'words'"):
        collect({"words": np.array(["\ud800"])}, ModelSpec())


_WORDS = ["", "a", "é€𝄞", "with\0nul", "x" * 1_000]


@pytest.mark.parametrize(
    "array",
    [
        np.array(_WORDS),
        np.array(_WORDS, object),
        np.array([word.encode() for word in _WORDS]),
        np.array([word.encode() for word in _WORDS], object),
        np.array(_WORDS, np.dtypes.StringDType()),
        _WORDS,
        [word.encode() for word in _WORDS],
        tuple(_WORDS),
        np.array(_WORDS).astype(np.dtype("U1000").newbyteorder("S")),
    ],
)
def test_every_kind_of_string_is_bytes_inside(array: Any) -> None:
    signature, (got,), rows = collect(array, ModelSpec())
    assert signature == (TensorSpec(STRING, ()),)
    assert rows == len(_WORDS)
    assert got.tolist() == [word.encode() for word in _WORDS]


@pytest.mark.parametrize("item", [b"ends with\0", b"\0", b"\0\0", b"\x89PNG\0\0"])
def test_nuls_at_the_end_of_bytes_are_kept(item: bytes) -> None:
    """numpy's own fixed-width strings drop them; encoded images and packed numbers end so."""
    for x in ([item], (item, b"x"), np.array([item], object)):
        _, (got,), _ = collect(x, ModelSpec())
        assert got[0] == item
    _, (got,), _ = collect({"text": [item.decode("latin-1")]}, ModelSpec())
    assert got[0] == item.decode("latin-1").encode()


def _offsets_block(offsets: list[int], data: bytes) -> bytearray:
    return bytearray(np.array(offsets, np.uint64).tobytes() + data)


@pytest.mark.parametrize(
    "offsets",
    [
        [1, 2, 3],
        [0, 3, 2],
        [0, 2, 7],
        [0, 2**64 - 1, 3],
        [0, 1, 2**64 - 1],
        [2**63, 0, 0],
        [0, 2**63, 2**63],
        [0, 2**64 - 25, 2**64 - 25],
    ],
)
def test_offsets_that_lie_are_refused(offsets: list[int]) -> None:
    plan = Plan((TensorSpec(STRING),))
    block = _offsets_block(offsets, b"abcdef")
    for start, stop in ((0, 2), (0, 1), (1, 2)):
        with pytest.raises(BadBlock):
            plan.read(memoryview(block), 0, len(block), 2, start, stop)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), st.integers(0, 60))
def test_no_offsets_read_outside_the_block(offsets: list[int], end: int) -> None:
    plan = Plan((TensorSpec(STRING),))
    secret = b"S" * 64
    block = _offsets_block(offsets, b"abcdef") + secret
    end = min(end, len(block) - len(secret))
    try:
        (got,) = plan.read(memoryview(block), 0, end, 2, 0, 2)
    except BadBlock:
        return
    assert secret[:1] not in b"".join(got.tolist())


def test_the_offsets_of_more_strings_than_there_is_room_for_are_refused() -> None:
    plan = Plan((TensorSpec(STRING, (1_000,)),))
    with pytest.raises(BadBlock):
        plan.read(memoryview(bytearray(800)), 0, 800, 1, 0, 1)


@pytest.mark.parametrize(
    ("x", "parts"),
    [
        (np.float32(3), ["the input", "first axis is rows", "scalar"]),
        (7, ["the input", "scalar"]),
        ("text", ["the input", "scalar"]),
        ({"a": np.zeros(3), "b": np.array(5)}, ["input 'b'", "scalar"]),
        ({"a": np.zeros(3), "b": np.zeros((4, 3))}, ["input 'b'", "4 rows", "3"]),
        ({}, ["empty dict"]),
        ({1: np.zeros(3)}, ["name", "1"]),
        ({"": np.zeros(3)}, ["name"]),
        ({"a\0b": np.zeros(3)}, ["name"]),
        ({"é" * 200: np.zeros(3)}, ["name", "256"]),
        ({"\ud800": np.zeros(3)}, ["name"]),
        ([[1, 2], [3]], ["the input", "not an array"]),
        (np.ma.array([1, 2], mask=[0, 1]), ["the input", "masked in part", ".filled(0)"]),
        (np.zeros((1,) * (MAX_RANK + 2)), ["the input", f"{MAX_RANK}"]),
        ({f"x{n}": np.zeros(1) for n in range(MAX_TENSORS + 1)}, [f"{MAX_TENSORS}"]),
    ],
)
def test_calls_that_cannot_be_sent_say_why(x: Any, parts: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        collect(x, ModelSpec())
    for part in parts:
        assert part in str(raised.value)


def test_numbers_beyond_what_the_model_takes_are_refused() -> None:
    small = ModelSpec(signature_of({"": ("uint8", (1,))}))
    with pytest.raises(InputError, match=r"the input: not an array: .*300 out of bounds for uint8"):
        collect([[300]], small)


def test_the_most_that_can_be_sent_can_be_sent() -> None:
    many = {f"x{n}": np.zeros(1) for n in range(MAX_TENSORS)}
    assert len(collect(many, ModelSpec())[0]) == MAX_TENSORS
    deep = np.zeros((1,) * (MAX_RANK + 1))
    assert len(collect(deep, ModelSpec())[0][0].shape) == MAX_RANK


_IMAGE = ModelSpec(signature_of({"image": ("float32", (2, None)), "label": ("string", ())}))


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
        (
            {"image": np.zeros((3, 2, 5), np.float32), "label": np.zeros(3)},
            ["input 'label'", "expected string (rows)", "got float64 (rows)"],
        ),
        ({"image": np.zeros((3, 2, 5), np.float32)}, ["missing 'label'"]),
        (np.zeros((3, 2, 5), np.float32), ["2 inputs", "dict"]),
    ],
)
def test_what_the_model_does_not_take_is_named_with_expected_and_got(
    x: Any, parts: list[str]
) -> None:
    with pytest.raises(InputError) as raised:
        collect(x, _IMAGE)
    for part in parts:
        assert part in str(raised.value)


def test_plain_lists_become_what_the_model_wants() -> None:
    spec = ModelSpec(signature_of({"a": ("float16", (2,)), "b": ("string", ())}))
    signature, arrays, rows = collect({"a": [[1, 2], [3, 4]], "b": ["x", b"y\0"]}, spec)
    assert rows == 2
    assert [tensor.dtype for tensor in signature] == ["float16", "string"]
    assert arrays[1].tolist() == [b"x", b"y\0"]
    (single,) = collect([1, 2, 3], ModelSpec(signature_of(("int8", ()))))[0]
    assert single.dtype == "int8"


def test_an_array_of_another_library_is_taken() -> None:
    class Foreign:
        dtype = np.dtype(np.int16)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            return np.arange(4, dtype=np.int16)

    signature, (array,), rows = collect(Foreign(), ModelSpec())
    assert (signature[0].dtype, rows) == ("int16", 4)
    np.testing.assert_array_equal(array, np.arange(4))


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=4)))
def test_views_are_written_as_they_look(array: np.ndarray[Any, Any]) -> None:
    for view in (array.T, array[:, ::-1], array[::-1], np.broadcast_to(array, array.shape)):
        signature, arrays, rows = collect(view, ModelSpec())
        plan = plan_of(signature)
        memory = bytearray(plan.size(arrays, 0, rows))
        plan.write(memoryview(memory), 0, arrays, 0, rows)
        (got,) = plan.read(memoryview(memory), 0, len(memory), rows, 0, rows)
        np.testing.assert_array_equal(got, view)


def test_callers_and_models_see_arrays_or_dicts() -> None:
    a, b = np.zeros(1), np.ones(1)
    assert structure((TensorSpec("float64"),), [a]) is a
    named = structure((TensorSpec("float64", (), "x"),), [a])
    assert list(named) == ["x"]
    both = structure((TensorSpec("float64", (), "x"), TensorSpec("float64", (), "y")), [a, b])
    assert list(both) == ["x", "y"]


@given(
    offset=st.integers(0, 5_000),
    length=st.integers(0, 5_000),
    input_bytes=st.integers(0, 5_000),
    cuts=st.lists(st.integers(0, 20), min_size=2, max_size=6).map(sorted),
)
def test_rooms_for_answers_lie_in_the_slot_and_apart(
    offset: int, length: int, input_bytes: int, cuts: list[int]
) -> None:
    """Also when a client says that its input fills the slot to the last odd byte."""
    input_bytes = min(input_bytes, length)
    total = max(cuts[-1], 1)
    behind = offset
    for start, stop in itertools.pairwise(cuts):
        begin, end = answer_room(offset, length, input_bytes, total, start, stop - start)
        assert offset + input_bytes <= begin or begin == end
        assert offset <= begin <= end <= offset + length
        if stop > start and stop - start < total:
            assert begin >= behind
            behind = end
    whole = answer_room(offset, length, input_bytes, total, 0, total)
    assert offset <= whole[0] <= whole[1] <= offset + length


@given(st.integers(0, 1 << 50))
def test_alignment(size: int) -> None:
    assert align(size) % ALIGNMENT == 0
    assert 0 <= align(size) - size < ALIGNMENT


@pytest.mark.parametrize("name", _FIXED)
@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (3, 0), (7,)])
def test_aligned_buffers(name: str, shape: tuple[int, ...]) -> None:
    array = empty_aligned(shape, numpy_dtype(name))
    assert array.shape == shape
    assert array.dtype == numpy_dtype(name)
    assert array.flags.c_contiguous
    assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0
