"""Feeds: each row once an epoch, whoever reads it and however it is cut; positions are exact."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError, InputError
from penstock.train.feed import Feed, feed_for
from penstock.train.feed.cut import cut
from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow


@pytest.fixture(scope="module", autouse=True)
def _tensorflow_process_ends() -> Iterator[None]:
    yield
    tensorflow_process.end()


def elements(feed: Feed, epoch: int = 0, start: int = 0) -> list[tuple[list[int], int]]:
    """The y of an epoch's elements, with counts; of an endless feed up to its padding."""
    found: list[tuple[list[int], int]] = []
    feed.noted.forget()
    for _x, y, _weight, count in feed.dataset(epoch, start):
        if feed.pads and len(found) == feed.noted.count:
            assert int(count) == 0
            break
        found.append((y.numpy().ravel().tolist(), int(count)))
    return found


def real(feed: Feed, epoch: int = 0, start: int = 0) -> list[int]:
    return [row for rows, count in elements(feed, epoch, start) for row in rows[:count]]


def check_padding(feed: Feed) -> None:
    for rows, count in elements(feed):
        assert len(rows) == max(count, 1)


def many_ways() -> Iterator[dict[str, int]]:
    for batch_size, workers, micros, replicas in (
        (7, 1, 1, 1),
        (16, 1, 2, 2),
        (16, 2, 1, 2),
        (1, 2, 1, 1),
        (64, 3, 2, 1),
        (7, 3, 2, 2),
    ):
        yield {
            "batch_size": batch_size,
            "workers": workers,
            "micros": micros,
            "replicas": replicas,
        }


def feeds(make: Any, workers: int, **options: Any) -> list[Feed]:
    return [feed_for(*make(), worker=(index, workers), **options) for index in range(workers)]


@in_tensorflow
def test_arrays_give_each_row_once_however_they_are_cut() -> None:
    rows = np.arange(37)
    for way in many_ways():
        every = feeds(lambda: (rows * 2.0, rows), seed=3, **way)
        assert sorted(row for feed in every for row in real(feed)) == rows.tolist()
        steps = {len(elements(feed)) / feed.share.elements for feed in every}
        assert steps == {every[0].steps} == {-(-37 // way["batch_size"])}
        check_padding(every[-1])


@in_tensorflow
def test_pieces_are_those_of_the_pure_cut() -> None:
    import tensorflow as tf

    rows = np.arange(23)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(4)
    for way in many_ways():
        size, workers = way["batch_size"], way["workers"]
        expected: list[list[list[int]]] = [[] for _ in range(workers)]
        for at in range(0, len(rows), size):
            parts = cut(len(rows[at : at + size]), workers, way["micros"], way["replicas"])
            for worker, spans in enumerate(parts):
                expected[worker] += [list(range(at + a, at + b)) for a, b in spans]
        for make in (lambda: (rows, rows), lambda: (dataset,)):
            for index, feed in enumerate(feeds(make, shuffle=False, **way)):
                assert [got[:count] for got, count in elements(feed)] == expected[index]


@in_tensorflow
def test_an_order_is_drawn_for_each_epoch_and_is_the_same_again() -> None:
    rows = np.arange(50)
    one, again = (feed_for(rows, rows, batch_size=8, seed=5) for _ in range(2))
    assert real(one, 0) != real(one, 1)
    assert real(one, 1) == real(again, 1)
    assert real(feed_for(rows, rows, batch_size=8, seed=6), 0) != real(one, 0)
    assert real(feed_for(rows, rows, batch_size=8, shuffle=False)) == rows.tolist()
    assert real(feed_for(rows, rows, batch_size=8, training=False)) == rows.tolist()
    two = feed_for(rows, rows, batch_size=8, replicas=2, seed=5)
    assert real(two) == real(one)
    assert elements(two, 2, start=3) == elements(two, 2)[3 * 2 :]
    assert real(two.recut(3), 2, start=3) == real(two, 2)[3 * 8 :]
    assert len(elements(two.recut(3))) == 3 * len(elements(two))


@in_tensorflow
def test_what_arrays_look_like_stays() -> None:
    strided = np.arange(24, dtype=np.uint8).reshape(6, 4)[:, ::2]
    x = {"a": [strided, np.array(list("abcdef"))], "b": np.arange(6.0)}
    x["b"].flags.writeable = False
    feed = feed_for(x, None, np.ones(6, np.float16), batch_size=4, seed=1)
    order = feed.order(0)  # type: ignore[attr-defined]
    (x0, y, weight, count), _last = feed.dataset(0)
    assert (y, int(count), weight.dtype.name) == (None, 4, "float16")
    assert x0["a"][0].numpy().tolist() == strided[order[:4]].tolist()
    assert x0["a"][0].dtype.name == "uint8"
    assert x0["a"][1].numpy().tolist() == [b"abcdef"[at : at + 1] for at in order[:4]]
    assert x0["b"].dtype.name == "float32"  # as Keras has it
    assert feed.dataset(0).element_spec[0]["a"][0].shape.as_list() == [None, 2]


@in_tensorflow
def test_memory_is_used_again_only_when_nobody_looks_at_it() -> None:
    x = np.arange(64 << 14, dtype=np.int64).reshape(64, 1 << 14)
    feed = feed_for(x, np.arange(64), batch_size=4, seed=2)
    held = [(x.numpy(), y.numpy()) for epoch in range(3) for x, y, _, _ in feed.dataset(epoch)]
    for rows, numbers in held:
        assert np.array_equal(rows, x[numbers])


@in_tensorflow
def test_arrays_that_do_not_fit_are_refused() -> None:
    rows = np.arange(10)
    for arguments, message in (
        ((None,), "expected data to train on"),
        ((rows, rows[:9]), "x has 10, y has 9"),
        (({"a": rows, "b": rows[1:]},), r"x\['a'\] has 10, x\['b'\] has 9"),
        ((rows[:0],), "at least one row"),
        (([1, 2, 3],), "x: expected an array.*got a list of int"),
        ((rows, "label"), "y: expected an array.*got a str"),
        ((np.array([{}, {}]),), "numbers or texts"),
        ((np.float32(1),), "got a float32"),
        ((object(),), "got a object"),
    ):
        with pytest.raises(InputError, match=message):
            feed_for(*arguments)
    with pytest.raises(ConfigError, match="batch_size: expected at least 1, got 0"):
        feed_for(rows, batch_size=0)
    with pytest.raises(ConfigError, match="shard: expected one of auto"):
        feed_for(rows, shard="rows")
    with pytest.raises(ConfigError, match=r"for tf\.data sets that read files"):
        feed_for(rows, shard="file")


@in_tensorflow
def test_workers_with_their_own_arrays_go_on_with_padding() -> None:
    own = [np.arange(5), np.arange(100, 117)]
    for index, rows in enumerate(own):
        feed = feed_for(rows, rows, batch_size=5, worker=(index, 2), replicas=2, shard="off")
        assert (feed.policy, feed.steps, feed.rows, feed.ends_together) == (
            "off",
            None,
            None,
            False,
        )
        assert sorted(real(feed)) == rows.tolist()
        assert [int(element[3]) for element in feed.dataset(0, start_step=99).take(4)] == [0] * 4
        check_padding(feed)


def numbered_files(folder: Path, counts: list[int]) -> list[str]:
    import tensorflow as tf

    paths, number = [], itertools.count()
    for place, count in enumerate(counts):
        paths.append(str(folder / f"{place}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as file:
            for _ in range(count):
                file.write(str(next(number)).encode())
    return paths


def parsed(dataset: Any) -> Any:
    import tensorflow as tf

    def pair(line: Any) -> Any:
        return tf.strings.to_number(line, tf.float32), tf.strings.to_number(line, tf.int32)

    return dataset.map(pair)


@in_tensorflow
def test_files_are_shared_where_there_are_enough(tmp_path: Path) -> None:
    import tensorflow as tf

    paths = numbered_files(tmp_path, [5, 9, 2, 1])
    listed = tf.data.Dataset.list_files(str(tmp_path / "*.tfrecord"), seed=7)
    for workers, dataset in (
        (2, parsed(tf.data.TFRecordDataset(paths)).batch(4)),
        (3, parsed(tf.data.TFRecordDataset(paths, num_parallel_reads=2)).shuffle(50).batch(4)),
        (2, parsed(listed.interleave(tf.data.TFRecordDataset)).batch(3)),
    ):
        every = feeds(lambda dataset=dataset: (dataset,), workers, batch_size=5, replicas=2)
        assert {feed.policy for feed in every} == {"file"}
        assert {feed.ends_together for feed in every} == {False}
        parts = [real(feed) for feed in every]
        assert sorted(itertools.chain(*parts)) == list(range(17))
        assert all(parts)
    check_padding(every[-1])
    few = feeds(lambda: (parsed(tf.data.TFRecordDataset(paths[:2])).batch(4),), 3, batch_size=5)
    assert {feed.policy for feed in few} == {"data"}
    assert sorted(itertools.chain(*map(real, few))) == list(range(14))
    with pytest.raises(ConfigError, match=r"as many files as workers.*got 2 files for 3 workers"):
        feed_for(parsed(tf.data.TFRecordDataset(paths[:2])).batch(4), worker=(0, 3), shard="file")
    asked = feed_for(parsed(tf.data.TFRecordDataset(paths)).batch(4), worker=(0, 2), shard="data")
    assert (asked.policy, asked.ends_together) == ("data", True)


@in_tensorflow
def test_a_shuffled_dataset_has_the_order_of_the_epoch_also_when_resumed() -> None:
    import tensorflow as tf

    def made() -> Any:
        numbers = tf.data.Dataset.range(40)
        return tf.data.Dataset.zip((numbers, numbers)).shuffle(40, seed=9).batch(3)

    through = feed_for(made(), batch_size=8, replicas=2)
    orders = [real(through, epoch) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    resumed = feed_for(made(), batch_size=8, replicas=2)
    assert resumed.dataset(0).element_spec[3].shape == []  # looked at, not begun
    assert real(resumed, 2, start=2) == orders[2][16:]
    with pytest.warns(RuntimeWarning, match="another order of rows than it began"):
        resumed.dataset(2, start_step=1)
    two = feeds(lambda: (made(),), 2, batch_size=8)
    assert sorted(real(two[0], 1) + real(two[1], 1)) == list(range(40))


@in_tensorflow
def test_batches_are_as_large_as_they_were_made_where_nothing_else_is_said() -> None:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((np.arange(40), np.arange(40)))
    made = rows.batch(6)
    for dataset in (
        made,
        rows.padded_batch(6),
        rows.batch(6, drop_remainder=True),
        rows.batch(3).rebatch(6),
        made.map(lambda a, b: (a, b), num_parallel_calls=2).cache().shuffle(9).prefetch(1).take(5),
        made.concatenate(rows.batch(6)).with_options(tf.data.Options()),
    ):
        assert feed_for(dataset).share.batch_size == 6
        assert feed_for(dataset, batch_size=4).share.batch_size == 4
    for dataset in (made.concatenate(rows.batch(5)), rows.window(3).flat_map(lambda a, b: made)):
        with pytest.raises(InputError, match=r"how many rows its batches have.*batch_size=…"):
            feed_for(dataset)

    class Batches:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, at: int) -> Any:
            return np.arange(5 if at < 2 else 1), np.arange(5 if at < 2 else 1)

    for seed in range(4):  # the short one may come first
        assert feed_for(Batches(), seed=seed).share.batch_size == 5
    assert feed_for(iter([(np.ones(7), np.ones(7))])).share.batch_size == 7
    assert feed_for(np.ones(7)).share.batch_size == 32


@in_tensorflow
def test_datasets_that_cannot_be_cut_are_refused() -> None:
    import tensorflow as tf

    numbers = tf.data.Dataset.range(10)
    for dataset, message in (
        (numbers, r"expected a data set of batches, got rows"),
        (numbers.batch(2).repeat(), "got one repeated for ever"),
        (tf.data.Dataset.from_tensors(tf.ragged.constant([[1], []])), "dense tensors"),
        (tf.data.Dataset.zip((numbers,) * 4).batch(2), "got 4 components"),
    ):
        with pytest.raises(InputError, match=message):
            feed_for(dataset)
    with pytest.raises(InputError, match="y comes with x in the elements of a data set"):
        feed_for(numbers.batch(2), np.arange(10))
    tf.random.set_seed(None)  # others may have set one: then every shuffle has a seed
    unseeded = numbers.map(lambda n: (n, n)).shuffle(10).batch(2)

    def within(seed: int | None) -> Any:
        parts = tf.data.Dataset.range(2)
        return parts.interleave(lambda part: numbers.shuffle(10, seed=seed)).batch(2)

    for dataset in (unseeded, within(None)):
        with pytest.raises(InputError, match="a shuffle without a seed"):
            feed_for(dataset, worker=(0, 2))
    assert feed_for(within(3), worker=(0, 2)).policy == "data"
    alone = feed_for(unseeded, batch_size=3)
    assert sorted(real(alone)) == list(range(10))
    with pytest.warns(RuntimeWarning, match="has a shuffle without a seed"):
        alone.dataset(0, start_step=1)


def loosely(**how: Any) -> Any:
    """Numbers in an order that depends on timing."""
    import tensorflow as tf

    return tf.data.Dataset.range(4).interleave(
        lambda part: tf.data.Dataset.range(10 * part, 10 * part + 10).map(_after_a_while),
        cycle_length=4,
        num_parallel_calls=4,
        **how,
    )


def _after_a_while(number: Any) -> Any:
    import tensorflow as tf

    def wait() -> Any:
        time.sleep(0.02 * random.random())
        return np.int64(0)

    return (number + tf.reshape(tf.numpy_function(wait, [], tf.int64), []),) * 2


@in_tensorflow
def test_workers_are_refused_what_each_would_read_in_an_order_of_its_own(tmp_path: Path) -> None:
    import tensorflow as tf

    tf.random.set_seed(None)
    numbers = tf.data.Dataset.range(20)
    halves = [numbers, numbers.skip(10)]
    for name in range(3):
        (tmp_path / f"{name}.txt").write_text("1\n2\n")
    listed = tf.data.Dataset.list_files(str(tmp_path / "*.txt"))
    for dataset, message in (
        (loosely(deterministic=False), "an interleave with deterministic=False"),
        (loosely().shuffle(5, seed=1).map(abs_, 2, deterministic=False), "a map with determ"),
        (numbers.window(2).flat_map(_loose_within), "a map with deterministic=False"),
        (numbers.sample_from_datasets(halves), "a random choice without a seed"),
        (tf.data.TextLineDataset(listed), "a shuffle without a seed"),
    ):
        for training in (True, False):
            with pytest.raises(InputError, match=f"the same order; got {message}"):
                feed_for(dataset.batch(2), worker=(0, 2), shard="data", training=training)
        feed_for(dataset.batch(2), shard="off", worker=(0, 2))
    with pytest.warns(RuntimeWarning, match="in another order of rows"):
        feed_for(loosely(deterministic=False).batch(2)).dataset(0, start_step=1)
    every = tf.data.Options()
    every.deterministic = False  # of what says nothing itself, the feed does
    for make in (
        lambda: loosely().batch(3).with_options(every),
        lambda: loosely().with_options(every).shuffle(20, seed=3).batch(3),
        lambda: numbers.sample_from_datasets(halves, seed=1).map(lambda n: (n, n)).batch(3),
    ):
        one, other = (feed_for(make(), worker=(at, 2), batch_size=6) for at in range(2))
        assert sorted(real(one) + real(other)) == sorted(real(feed_for(make())))


def abs_(number: Any, other: Any) -> Any:
    return abs(number), other


def _loose_within(numbers: Any) -> Any:
    return numbers.map(abs, num_parallel_calls=2, deterministic=False)


@in_tensorflow
def test_a_source_is_read_by_columns(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    from penstock.data import open_source

    path, rows = tmp_path / "rows.parquet", np.arange(700)
    columns = {"a": rows * 2.0, "b": rows * 3, "target": rows}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
    feed = feed_for(path, "target", batch_size=64, seed=4)
    assert (feed.rows, feed.steps, feed.policy) == (700, 11, "rows")
    assert sorted(real(feed)) == rows.tolist()
    assert real(feed) != rows.tolist()
    assert real(feed, 0) != real(feed, 1)
    assert real(feed, 1, start=9) == real(feed, 1)[9 * 64 :]
    for x, y, _, _ in feed.dataset(0):
        assert np.array_equal(x["a"], y.numpy() * 2.0)
    assert real(feed_for(path, "target", shuffle=False, batch_size=64), start=5) == list(
        range(320, 700)
    )
    three = feeds(lambda: (str(path), "target"), 3, batch_size=64)
    assert sorted(itertools.chain(*map(real, three))) == rows.tolist()
    with pytest.raises(InputError, match=r"y: expected the name of a column.*got 'label'"):
        feed_for(path, "label")
    arrays = open_source({"x": rows, "label": rows, "weight": rows * 0.5})
    held = feed_for(arrays, batch_size=64)
    assert (held.policy, sorted(real(held))) == ("rows", rows.tolist())
    assert next(iter(held.dataset(0)))[2] is not None


@in_tensorflow
def test_of_a_source_each_worker_reads_only_what_it_trains_on(tmp_path: Path) -> None:
    from penstock.data import open_source

    np.savez(tmp_path / "rows.npz", x=np.arange(130) * 2.0, label=np.arange(130))
    for size, count, seed in ((3, 3, 4), (32, 2, None), (32, 3, 4), (129, 2, 4)):
        parts = []
        for index in range(count):
            source = open_source(tmp_path / "rows.npz")
            read: list[int] = []
            plain = source.read

            def noted(start: int, stop: int, read: Any = read, plain: Any = plain) -> Any:
                read += range(start, stop)
                return plain(start, stop)

            source.read = noted  # type: ignore[method-assign]
            feed = feed_for(
                source,
                batch_size=size,
                worker=(index, count),
                micros=2,
                shuffle=seed is not None,
                seed=seed or 0,
            )
            parts.append(real(feed, 1))
            assert sorted(read) == sorted(parts[-1])  # each once, and no others
            assert feed.policy == "rows"
            assert len(elements(feed, 1)) == 2 * feed.steps
            assert real(feed, 1, start=1) == parts[-1][len(parts[-1]) - len(real(feed, 1, 1)) :]
        assert sorted(itertools.chain(*parts)) == list(range(130))
        alone = feed_for(
            tmp_path / "rows.npz", batch_size=size, shuffle=seed is not None, seed=seed or 0
        )
        first = itertools.chain(
            *(part[: len(range(size)[at::count])] for at, part in enumerate(parts))
        )
        assert sorted(first) == sorted(real(alone, 1)[:size])
    for given, shard in ((2, "auto"), (32, "data")):  # too few for three, or asked for
        every = [
            feed_for(tmp_path / "rows.npz", batch_size=given, worker=(at, 3), shard=shard)
            for at in range(3)
        ]
        assert {feed.policy for feed in every} == {"data"}
        assert sorted(itertools.chain(*map(real, every))) == list(range(130))


@in_tensorflow
def test_what_cannot_be_read_from_any_row_on_is_read_by_all(tmp_path: Path) -> None:
    import tensorflow as tf

    from penstock.data import open_source

    def rows() -> Iterator[Any]:
        return ({"x": float(at), "label": at} for at in range(9000))

    numbers = tf.data.Dataset.range(9000).map(lambda n: {"x": n, "label": n})
    for thing in (rows, numbers):
        every = [
            feed_for(open_source(thing), batch_size=64, worker=(at, 2), seed=3) for at in range(2)
        ]
        assert {feed.policy for feed in every} == {"data"}
        parts = [real(feed, 1) for feed in every]
        assert sorted(itertools.chain(*parts)) == list(range(9000))
        assert parts[0][:32] != list(range(32))
        assert real(every[1], 1, start=130) == parts[1][130 * 32 :]
        plain = feed_for(open_source(thing), batch_size=64, shuffle=False)
        assert real(plain, 0, start=3) == list(range(192, 9000))


@in_tensorflow
def test_images_are_read_one_by_one_by_every_worker_its_own(tmp_path: Path) -> None:
    from PIL import Image

    from penstock.data import open_source

    for shade in range(7):
        Image.new("RGB", (4, 4), (shade, shade, shade)).save(tmp_path / f"{shade}.png")
    source = open_source(tmp_path, size=(4, 4))
    seen = []
    for index in range(2):
        feed = feed_for(source, batch_size=4, worker=(index, 2), seed=1)
        assert feed.policy == "rows"
        for x, y, _, count in feed.dataset(0):
            assert y is None
            seen += x.numpy()[: int(count), 0, 0, 0].tolist()
    assert sorted(seen) == list(range(7))


@in_tensorflow
def test_batches_from_python() -> None:
    import keras

    def made() -> Iterator[Any]:
        for at in range(0, 20, 6):
            rows = np.arange(at, min(at + 6, 20))
            yield {"n": rows}, rows

    feed = feed_for(made, batch_size=8)
    assert real(feed, 0) == real(feed, 1) == list(range(20))
    assert real(feed, 0, start=2) == [16, 17, 18, 19]
    once = feed_for(made(), batch_size=8)
    assert real(once) == list(range(20))
    with pytest.raises(Exception, match="gone through once"):
        real(once)

    class Known(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, at: int) -> Any:
            rows = np.arange(at * 4, at * 4 + 4)
            return rows, rows

    two = feeds(lambda: (Known(),), 2, batch_size=6, seed=3)
    assert sorted(itertools.chain(*map(real, two))) == list(range(20))
    assert real(feed_for(Known(), shuffle=False)) == list(range(20))
    with pytest.raises(InputError, match="at least one batch"):
        feed_for(iter([]))
