"""Tensors' descriptions: what is refused, what fits, and what the messages say."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, InputError
from penstock.spec import (
    DTYPES,
    MAX_RANK,
    ModelSpec,
    TensorSpec,
    check_name,
    signature_of,
    tensor_spec,
)


def test_dtype_codes_are_unique_and_never_renumbered() -> None:
    assert {name: code for name, (code, _) in DTYPES.items()} == {
        "bool": 1,
        "int8": 2,
        "int16": 3,
        "int32": 4,
        "int64": 5,
        "uint8": 6,
        "uint16": 7,
        "uint32": 8,
        "uint64": 9,
        "float16": 10,
        "float32": 11,
        "float64": 12,
        "complex64": 13,
        "complex128": 14,
        "bfloat16": 15,
        "float8_e4m3fn": 16,
        "float8_e5m2": 17,
        "int4": 18,
        "uint4": 19,
        "string": 20,
    }


@pytest.mark.parametrize(
    ("dtype", "shape", "name", "complaint"),
    [
        ("float99", (), "", "unknown dtype"),
        ("float32", (1,) * (MAX_RANK + 1), "", "axes"),
        ("float32", (3, -1), "", "negative"),
        ("float32", (), "é" * 129, "name"),
    ],
)
def test_impossible_tensors_are_refused(
    dtype: str, shape: tuple[int, ...], name: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TensorSpec(dtype, shape, name)


def test_sizes_of_a_row() -> None:
    tensor = TensorSpec("float32", [2, 3])  # type: ignore[arg-type]
    assert tensor.shape == (2, 3)
    assert (tensor.elements, tensor.row_bytes) == (6, 24)
    assert TensorSpec("int16").row_bytes == 2
    assert TensorSpec("float64", (4, 0)).row_bytes == 0
    assert TensorSpec("string", (5,)).row_bytes == 0
    assert TensorSpec("string", (5,)).elements == 5


def test_a_tensor_says_what_it_is() -> None:
    assert str(TensorSpec("uint8", (None, 224))) == "uint8 (rows, any, 224)"


def test_open_sizes_admit_any_size_and_nothing_else() -> None:
    wanted = TensorSpec("float32", (None, 3))
    assert wanted.admits(TensorSpec("float32", (7, 3)))
    assert wanted.admits(TensorSpec("float32", (0, 3)))
    assert not wanted.admits(TensorSpec("float32", (7, 4)))
    assert not wanted.admits(TensorSpec("float32", (7,)))
    assert not wanted.admits(TensorSpec("float64", (7, 3)))


_TWO = ModelSpec(signature_of({"image": ("uint8", (4, 4)), "size": ("int32", ())}))
_ONE = ModelSpec(signature_of(("float32", (3,))))
_NAMED = ModelSpec(signature_of({"image": ("float32", (3,))}))


def _signature(**tensors: TensorSpec) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.dtype, t.shape, name) for name, t in tensors.items())


@pytest.mark.parametrize(
    ("spec", "given", "parts"),
    [
        (_TWO, (TensorSpec("uint8", (4, 4)),), ["2 inputs", "'image'", "'size'", "one array"]),
        (_TWO, _signature(image=TensorSpec("uint8", (4, 4))), ["missing 'size'"]),
        (
            _TWO,
            _signature(
                image=TensorSpec("uint8", (4, 4)),
                size=TensorSpec("int32"),
                colour=TensorSpec("int32"),
            ),
            ["unknown 'colour'", "expected 'image', 'size'"],
        ),
        (
            _TWO,
            _signature(picture=TensorSpec("uint8", (4, 4)), size=TensorSpec("int32")),
            ["missing 'image' and unknown 'picture'"],
        ),
        (
            _TWO,
            _signature(image=TensorSpec("uint8", (4, 5)), size=TensorSpec("int32")),
            ["input 'image'", "expected uint8 (rows, 4, 4)", "got uint8 (rows, 4, 5)"],
        ),
        (
            _ONE,
            (TensorSpec("float64", (3,)),),
            ["the input", "expected float32 (rows, 3)", "got float64 (rows, 3); convert it with"],
        ),
        (_ONE, (TensorSpec("float32"),), ["got float32 (rows); the first axis is rows: a single"]),
        (_NAMED, (TensorSpec("float64", (3,)),), ["input 'image'", "got float64"]),
    ],
)
def test_what_does_not_fit_is_named(
    spec: ModelSpec, given: tuple[TensorSpec, ...], parts: list[str]
) -> None:
    with pytest.raises(InputError) as raised:
        spec.check(given)
    for part in parts:
        assert part in str(raised.value)


def test_what_fits_passes() -> None:
    ModelSpec().check((TensorSpec("bool", (1, 2, 3)),))
    _ONE.check((TensorSpec("float32", (3,)),))
    _NAMED.check((TensorSpec("float32", (3,)),))
    _NAMED.check(_signature(image=TensorSpec("float32", (3,))))
    _TWO.check(_signature(size=TensorSpec("int32"), image=TensorSpec("uint8", (4, 4))))


def test_what_people_write() -> None:
    assert tensor_spec(("float32", [224, None])) == TensorSpec("float32", (224, None))
    assert tensor_spec(TensorSpec("int8", (2,)), "x") == TensorSpec("int8", (2,), "x")
    assert signature_of(None) is None
    assert signature_of(("int8", ())) == (TensorSpec("int8"),)
    assert signature_of({"a": ("int8", (1,))}) == (TensorSpec("int8", (1,), "a"),)
    pair = (TensorSpec("int8", (), "a"), TensorSpec("int8", (), "b"))
    assert signature_of(pair) == pair


@pytest.mark.parametrize("value", [{}, "float32", ("float32",), 7, ("float32", 3), (1, (2,))])
def test_what_is_no_tensor_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        signature_of(value)


@pytest.mark.parametrize("name", ["a", "vision", "a.b-c_d", "0", "x" * 64])
def test_plain_names_pass(name: str) -> None:
    assert check_name(name, "name") == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "-x", ".x", "a b", "a\n", "a\0", "é", "x" * 65]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        check_name(name, "engine name")
