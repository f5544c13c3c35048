"""Rows of different lengths in one batch: padded on the way in, cut on the way out."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.client.padding import Trim, pad_inputs, trim_output
from penstock.errors import ConfigError, InputError
from penstock.spec import ModelSpec, Pad, TensorSpec
from penstock.testing import LocalEngine

TEXT = ModelSpec(
    (
        TensorSpec("int32", (None,), "tokens"),
        TensorSpec("float32", (None,), "mask"),
        TensorSpec("int64", (), "lengths"),
    )
)
PAD = Pad((4, 8), input="tokens", mask="mask", lengths="lengths")


def test_lists_of_different_lengths_become_one_array_with_mask_and_lengths():
    padded, trims = pad_inputs({"tokens": [[1, 2, 3], [4], []]}, [PAD], TEXT)
    assert padded["tokens"].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [0, 0, 0, 0]]
    assert padded["tokens"].dtype == np.int32
    assert padded["mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert padded["mask"].dtype == np.float32
    assert padded["lengths"].tolist() == [3, 1, 0]
    assert padded["lengths"].dtype == np.int64
    assert trims == ()


@pytest.mark.parametrize(("length", "size"), [(1, 4), (4, 4), (5, 8), (8, 8)])
def test_the_next_size_is_taken(length, size):
    x = np.arange(2 * length, dtype=np.float32).reshape(2, length)
    padded, _ = pad_inputs(x, [Pad((8, 4), value=-1)], ModelSpec())
    assert padded.shape == (2, size)
    assert (padded[:, :length] == x).all()
    assert (padded[:, length:] == -1).all()


def test_an_array_that_has_the_size_is_not_copied():
    x = np.zeros((3, 8), np.int32)
    assert pad_inputs(x, [Pad((4, 8))], ModelSpec())[0] is x


def test_an_inner_axis():
    rows = [np.ones((2, 3)), np.ones((2, 1))]
    padded, _ = pad_inputs(rows, [Pad((4,), axis=1)], ModelSpec())
    assert padded.shape == (2, 2, 4)
    assert padded.sum(axis=(1, 2)).tolist() == [6, 2]


def test_texts():
    padded, _ = pad_inputs([["a", "b\0"], ["c"]], [Pad((3,))], ModelSpec())
    assert padded.tolist() == [["a", "b\0", b""], ["c", b"", b""]]


def test_no_rows():
    padded, _ = pad_inputs(np.zeros((0, 3), np.int32), [Pad((4, 8))], ModelSpec())
    assert padded.shape == (0, 4)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ([[1] * 9], "at most 8"),
        (np.zeros((1, 9)), "at most 8"),
        ([1, 2], r"shape \(\)"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "differ in more than axis 0"),
        ([np.zeros(3), np.zeros((3, 1))], "differ in more than axis 0"),
        ("text", "expected an array or a list of rows, got str"),
        ([[1], [object()]], "."),
        ([], "empty list"),
        ([[1], [10**30, 2]], "not an array"),
        ([np.ma.array([1, 2], mask=[0, 1])], "without a mask"),
    ],
)
def test_what_cannot_be_padded_is_refused(x, said):
    with pytest.raises(InputError, match=said):
        pad_inputs(x, [Pad((4, 8))], ModelSpec((TensorSpec("int32", (None,), ""),)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sizes": ()},
        {"sizes": (0,)},
        {"sizes": ("8",)},
        {"sizes": 4, "axis": -1},
        {"sizes": 4, "mask": "mask"},
    ],
)
def test_bad_pads(wrong):
    with pytest.raises(ConfigError, match="pad"):
        Pad(**wrong)


def test_two_pads_of_one_input():
    with pytest.raises(ConfigError, match="two Pads"):
        penstock.Model("a:b", pad=[Pad(4), Pad(8)])
    with pytest.raises(ConfigError, match="expected a Pad"):
        penstock.Model("a:b", pad=[{"size": 4}])


def test_outputs_are_cut():
    trims = (Trim("", 0, 3), Trim("other", 1, 1))
    assert trim_output("", np.zeros((2, 8)), trims).shape == (2, 3)
    assert trim_output("other", np.zeros((2, 5, 8)), trims).shape == (2, 5, 1)
    assert trim_output("else", np.zeros((2, 8)), trims).shape == (2, 8)
    assert trim_output("", np.zeros(2), trims).shape == (2,)


def _double(x):
    return x * 2


def test_rows_of_different_lengths_through_an_engine():
    model = penstock.Model("tests.client.test_padding:_double", pad=Pad((4, 8), trim=""))
    with LocalEngine(model) as engine:
        answer = engine.predict([[1, 2], [3, 4, 5]])
        assert answer.tolist() == [[2, 4, 0], [6, 8, 10]]
        assert engine.predict(np.ones((1, 6))).shape == (1, 6)


def test_as_many_sizes_as_clients_can_be_told_of():
    """A model with more could be reached by nobody: it is refused before anything starts."""
    source = "penstock.testing.models:double"
    with pytest.raises(ConfigError, match=r"pad: expected .* 50000 bytes.* 16000 sizes"):
        penstock.Model(source, pad=Pad(range(1, 16_001)))
    with pytest.raises(ConfigError, match="12000 sizes"):
        penstock.Model(source, pad=[Pad(range(1, 6001), input=name) for name in ("x", "y")])
    with penstock.Engine(penstock.Model(source, pad=Pad(range(1, 8001)))) as engine:
        assert engine.predict(np.ones((1, 3))).tolist() == [[2, 2, 2]]
        assert engine.predict([[1, 2], [3]]).tolist() == [[2, 4], [6, 0]]
