"""tf.data sources, and TFRecord against TensorFlow's own reader and writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.data import open_sink, open_source, reopen
from penstock.errors import InputError
from penstock.spec import TensorSpec
from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow


@pytest.fixture(scope="module", autouse=True)
def _tensorflow_process_ends() -> Iterator[None]:
    yield
    tensorflow_process.end()


def numbered():  # type: ignore[no-untyped-def]
    import tensorflow as tf

    return tf.data.Dataset.range(1000).map(
        lambda n: {"n": n, "x": tf.fill([2], tf.cast(n, tf.float32)), "t": tf.strings.as_string(n)}
    )


@in_tensorflow
def test_a_dataset_by_name() -> None:
    source = open_source(f"{__file__}:numbered", key="t")
    assert len(source) == 1000
    assert not source.seekable
    assert {spec.name: spec for spec in source.signature} == {
        "n": TensorSpec("int64", (), "n"),
        "t": TensorSpec("string", (), "t"),
        "x": TensorSpec("float32", (2,), "x"),
    }
    chunk = source.read(700, 703)
    assert chunk.columns["n"].tolist() == [700, 701, 702]
    assert chunk.columns["x"].tolist() == [[700, 700], [701, 701], [702, 702]]
    assert chunk.keys.tolist() == ["700", "701", "702"]
    assert source.read(10, 11).columns["n"].tolist() == [10]
    assert source.read(998, 1100).columns["n"].tolist() == [998, 999]
    assert len(source.read(1000, 1001)) == 0
    sizes = [len(chunk) for chunk in source.chunks(300)]
    assert sizes == [300, 300, 300, 100]
    again = reopen(source.describe())
    assert again.fingerprint() == source.fingerprint()
    assert again.read(5, 6).columns["n"].tolist() == [5]
    others = (open_source(f"{__file__}:numbered", key=key) for key in ("n", None))
    assert len({source.fingerprint(), *(other.fingerprint() for other in others)}) == 3


@in_tensorflow
def test_batches_labels_and_open_shapes() -> None:
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((np.arange(20.0).reshape(10, 2), np.arange(10)))
    source = open_source(pairs.batch(4), batched=True)
    assert source.rows is None
    assert source.read(3, 9).columns["label"].tolist() == [3, 4, 5, 6, 7, 8]
    assert source.read(1, 2).columns[""].tolist() == [[2, 3]]
    assert [len(chunk) for chunk in source.chunks(3)] == [3, 3, 3, 1]
    ragged = tf.data.Dataset.from_generator(
        lambda: ([0.0] * size for size in (2, 2, 3, 2)),
        output_signature=tf.TensorSpec([None], tf.float32),
    )
    chunk = open_source(ragged).read(0, 9)
    assert [(f.row, f.kind) for f in chunk.failures] == [(2, "shape")]
    with pytest.raises(InputError, match="expected dense tensors, got RaggedTensorSpec"):
        open_source(tf.data.Dataset.from_tensors(tf.ragged.constant([[1], []])))


@in_tensorflow
def test_tensorflow_reads_what_we_write_and_we_what_it_writes(tmp_path: Path) -> None:
    import tensorflow as tf

    columns = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "n": np.array([-1, 0, 2**40]),
        "t": np.array(["a", "é", ""], object),
    }
    path = str(tmp_path / "ours.tfrecord")
    with open(path, "wb") as file:
        open_sink(path).write(file, columns, np.arange(3))
    description = {
        "x": tf.io.FixedLenFeature([2, 2], tf.float32),
        "n": tf.io.FixedLenFeature([], tf.int64),
        "t": tf.io.FixedLenFeature([], tf.string),
        "key": tf.io.FixedLenFeature([], tf.int64),
    }
    rows = list(
        tf.data.TFRecordDataset(path).map(lambda r: tf.io.parse_single_example(r, description))
    )
    assert [int(row["n"]) for row in rows] == [-1, 0, 2**40]
    assert [row["t"].numpy().decode() for row in rows] == ["a", "é", ""]
    assert np.array_equal([row["x"].numpy() for row in rows], columns["x"])
    theirs = str(tmp_path / "theirs.tfrecord")
    with tf.io.TFRecordWriter(theirs) as writer:
        for record in tf.data.TFRecordDataset(path):
            example = tf.train.Example.FromString(record.numpy())
            writer.write(example.SerializeToString())
    features = {"x": ("float32", (2, 2)), "n": "int64", "t": "string"}
    chunk = open_source(theirs, features=features).read(0, 9)
    assert not chunk.failures
    assert np.array_equal(chunk.columns["x"], columns["x"])
    assert chunk.columns["n"].tolist() == columns["n"].tolist()
    assert [text.decode() for text in chunk.columns["t"]] == ["a", "é", ""]
