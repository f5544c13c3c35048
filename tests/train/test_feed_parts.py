"""Parts of data: every row in one of them, found again by whoever reads it, from any step on."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow

ROWS, PARTS, BATCH = 23, 3, 4


@pytest.fixture(scope="module", autouse=True)
def _tensorflow_process_ends() -> Iterator[None]:
    yield
    tensorflow_process.end()


def policy(x: Any, y: Any = None, shard: str = "auto") -> str | None:
    from penstock.train.feed import feed_for
    from penstock.train.feed.parts import policy_for

    return policy_for(x, feed_for(x, y, batch_size=BATCH), PARTS, shard)


def batches(x: Any, y: Any, shared: str, part: int, epoch: int = 0, number: int = 0) -> list[Any]:
    """Of a part that was just made, as another process would: the rows of each step."""
    from penstock.train.feed.feed import Share
    from penstock.train.feed.parts import part_of

    made = part_of((x, y, None), shared, part, PARTS, Share(BATCH), shuffle=True, seed=3)
    return [y.numpy().ravel().tolist() for _, y, _, _ in made.elements(epoch, number)]


def check(x: Any, y: Any = None, expected: str = "data", steps: int = 6) -> None:
    """The whole epoch is in the parts; any step is found again, by whoever looks for it."""
    shared = policy(x, y)
    assert shared == expected
    orders = []
    for epoch in range(2):
        parts = [batches(x, y, shared, part, epoch) for part in range(PARTS)]
        assert sum(map(len, parts)) == steps
        orders.append([row for part in parts for rows in part for row in rows])
        assert sorted(orders[-1]) == list(range(ROWS))
        for part, whole in enumerate(parts):
            for number in range(len(whole) + 1):
                assert batches(x, y, shared, part, epoch, number) == whole[number:]
    assert orders[0] != orders[1]  # they are shuffled


def numbers(start: int = 0, stop: int = ROWS) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.range(start, stop).map(lambda n: (n, n))


@in_tensorflow
def test_a_shuffled_dataset_is_found_in_the_same_order_also_by_who_looked_at_it_before() -> None:
    import tensorflow as tf

    data = numbers().shuffle(ROWS, seed=5).batch(5)
    next(iter(data))
    check(data)
    check(lambda: numbers().shuffle(ROWS, seed=5).batch(5))
    tf.random.set_seed(None)  # others may have set one: then every shuffle has a seed
    check(numbers().shuffle(ROWS).batch(5))  # without one, that of the run counts
    nested = tf.data.Dataset.range(1).interleave(lambda _: numbers().shuffle(ROWS))
    check(nested.batch(5))
    halves = [numbers(0, 9), numbers(9)]
    chosen = tf.data.Dataset.sample_from_datasets(halves, rerandomize_each_iteration=True)
    check(chosen.batch(5))

    def late(row: Any, same: Any) -> Any:
        def wait() -> Any:
            time.sleep(0.02 * random.random())
            return np.int64(0)

        return row + tf.reshape(tf.numpy_function(wait, [], tf.int64), []), same

    loose = numbers().shuffle(ROWS).map(late, num_parallel_calls=4, deterministic=False)
    check(loose.prefetch(2).batch(5))  # whichever is ready first, as it says
    kept = numbers().shuffle(ROWS).cache().batch(5)
    assert batches(kept, None, "data", 1, epoch=0) == batches(kept, None, "data", 1, epoch=4)


@in_tensorflow
def test_files_are_dealt_out_and_what_is_shuffled_in_them_is_found_again(tmp_path: Path) -> None:
    import tensorflow as tf

    cuts = [0, 9, 11, 12, 20, ROWS]
    for name, (start, stop) in enumerate(itertools.pairwise(cuts)):
        (tmp_path / f"{name}").write_text("".join(f"{row}\n" for row in range(start, stop)))

    def row(line: Any) -> Any:
        return (tf.strings.to_number(line, tf.int64),) * 2

    listed = tf.data.Dataset.list_files(f"{tmp_path}/*", seed=4)
    lines = listed.interleave(tf.data.TextLineDataset, cycle_length=2, num_parallel_calls=2)
    # files 0 and 3, 1 and 4, 2: 17, 5 and 1 rows
    check(lines.map(row).shuffle(4, seed=2).batch(3), expected="file", steps=5 + 2 + 1)


@in_tensorflow
def test_sources_are_read_by_all_and_rows_of_images_by_one(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    from penstock.data import open_source

    table = pyarrow.table({"a": np.arange(ROWS), "y": np.arange(ROWS)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    check(str(tmp_path / "rows.parquet"), "y")
    for at in range(5):
        (tmp_path / "images" / f"{at}").mkdir(parents=True)
        Image.fromarray(np.full((2, 2, 3), at, np.uint8)).save(tmp_path / f"images/{at}/one.png")
    assert policy(open_source(str(tmp_path / "images"), size=(2, 2))) == "rows"
    check(np.arange(ROWS), np.arange(ROWS), expected="rows")


@in_tensorflow
def test_what_only_one_process_can_read_is_in_no_parts() -> None:
    from penstock.train.feed import orders

    rows = [(np.arange(4), np.arange(4))]
    for data in (iter(rows), lambda: iter(rows), Pairs()):
        assert policy(data) is None
    assert policy(numbers().batch(3), shard="chief") is None
    assert policy(Pairs(), shard="data") == "data"
    large = numbers().shuffle(ROWS).batch(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_LARGEST", 10)
        assert policy(large) is None
        with pytest.raises(ConfigError, match="shuffled and cannot be copied"):
            policy(large, shard="data")
    with pytest.raises(ConfigError, match="a generator that has begun is the chief's alone"):
        policy(iter(rows), shard="data")
    with pytest.raises(ConfigError, match='shard="file" needs as many files as workers'):
        policy(numbers().batch(3), shard="file")


class Pairs:
    """As a `PyDataset` is."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> Any:
        return np.arange(4), np.arange(4)


@in_tensorflow
def test_a_reader_goes_on_where_the_servers_say_that_its_part_is() -> None:
    from penstock.train import reading
    from penstock.train.reading import Asked, Reader, spec_of

    data = numbers().shuffle(ROWS, seed=5).batch(5)
    spec = spec_of(numbers().batch(1).map(lambda x, y: (x, y, None)))
    asked = Asked("training", "data", PARTS, BATCH, 2, True, 3, spec)
    assert Asked.of(asked.text().encode()) == asked
    whole = {part: batches(data, None, "data", part) for part in range(PARTS)}
    reader = Reader(1)
    counted = np.zeros((4, PARTS), np.int64)

    def answered(*owners: int) -> Any:
        answer = reader.answer(asked.text().encode(), np.int64(0), np.array(owners), counted)
        part, rows, over, wrong = answer[:4]
        assert len(answer) == len(asked.kinds)
        first, second = answer[5:7], answer[8:10]
        taken = [row for y, count in (first, second) for row in y[:count].tolist()]
        assert len(taken) == rows
        assert wrong == b"", wrong
        counted[:, part] += (rows > 0, rows, over, 0)
        return int(part), taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_SOON", 0.01)
        assert answered(0, 1, 2) == (0, [])  # the script is not there yet
    reader.give((data, None, None), None)
    assert answered(0, 1, 2) == (1, whole[1][0])
    assert answered(0, 1, 2) == (1, whole[1][1])
    assert counted[:, 1].tolist() == [2, 2 * BATCH, 0, 0]
    counted[0, 2] = 1  # another one has read that, and is gone
    assert answered(0, 1, 1) == (1, [])  # that was all of its own
    assert counted[reading.OVER].tolist() == [0, 1, 0]
    assert answered(0, 1, 1) == (2, whole[2][1])
    counted[0, 2] = 0  # as if that step had been lost: it is read again
    assert answered(0, 1, 1) == (2, whole[2][0])
    assert answered(0, 1, 2) == (0, [])  # whoever it was is back


def test_parts_of_the_lost_are_read_by_the_next_who_lives() -> None:
    from penstock.train.reading import owners

    assert owners([True, True, True]) == [0, 1, 2]
    assert owners([True, False, True]) == [0, 2, 2]
    assert owners([True, False, False]) == [0, 0, 0]
    assert owners([False, False]) == [0, 1]
