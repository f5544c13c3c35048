"""Rows to batches, parts and shards: every row once, and batches always the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import open_source
from penstock.offline.cut import PARTS_AHEAD, Cut, cut
from penstock.offline.selection import Selection, load, select
from penstock.offline.settings import JobSettings

sizes = st.integers(1, 300)


@given(batch=sizes, row=st.integers(0, 1 << 24), chunk=st.integers(0, 5000), rows=sizes)
def test_every_row_is_in_one_batch_which_is_always_the_same(batch, row, chunk, rows):
    found = cut(batch, row, chunk)
    assert found.part % batch == found.block % batch == 0
    if chunk:
        assert PARTS_AHEAD * found.part <= max(chunk, PARTS_AHEAD * batch)
    seen = []
    for part in range(found.parts(rows)):
        for start, stop in found.blocks(part, rows):
            assert start % batch == 0
            assert stop % batch == 0 or stop == rows
            seen += range(start, stop)
    assert seen == list(range(rows))
    assert Cut(**found.to_json()) == found


def test_parts_suit_the_device_and_decoding():
    image = 224 * 224 * 3 + 4000
    assert cut(256, image).part == 8 * 256
    fast = cut(256, image, rate=32_000.0).part
    assert 8 * 256 < fast <= 32_000, "a part's writes must not take longer than its rows"
    assert cut(32, 100, rate=1e9).part == 16_384, "and memory stays bounded"
    assert cut(256, image, singly=True).part == 256, "16 loaders share 20,000 files"
    assert cut(256, image, chunk=1024, rate=32_000.0).part == 512, "what was asked for holds"


def test_few_small_images_are_enough_for_all_loaders():
    thumbnail = 64 * 64 * 3
    assert cut(32, thumbnail, singly=True).part > 5000
    assert cut(32, thumbnail, singly=True, each=750).part == 64, "eight parts for each"
    assert cut(32, thumbnail, singly=True, each=20).part == 32, "a batch at least"
    assert cut(32, thumbnail, singly=True, each=10**7).part == cut(32, thumbnail, singly=True).part
    assert cut(32, thumbnail, chunk=1024, singly=True, each=20).part == 512, "what was asked for"


@given(batch=sizes, rows=st.integers(0, 400), count=st.integers(1, 9))
def test_contiguous_shards_begin_with_a_whole_batch(batch, rows, count):
    source = open_source(np.zeros((rows, 1)))
    shards = [
        select(source, JobSettings(shard=f"{index}/{count}"), batch).rows
        for index in range(1, count + 1)
    ]
    assert [row for shard in shards for row in shard] == list(range(rows))
    assert all(shard.start % batch == 0 for shard in shards if len(shard))


@pytest.mark.parametrize("text", ["short", "long"])
@pytest.mark.parametrize("count", [2, 16, 17, 64, 1000])
def test_rows_of_a_group_are_read_with_those_between_unless_these_are_large(tmp_path, text, count):
    rows, long = (20_000, 0) if text == "short" else (60, 600_000)
    texts = pa.array([f"{row}" for row in range(rows)])
    texts = pa.array(["x" * long] * rows) if long else texts
    pq.write_table(pa.table({"n": np.arange(rows), "t": texts}), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet")
    reads, read = [], source.read
    source.read = lambda start, stop: (reads.append(stop - start), read(start, stop))[1]
    wanted = np.arange(1, rows, count)[:200]
    chunk, numbers = Selection(wanted).read(source, 0, len(wanted))
    assert chunk.columns["n"].tolist() == numbers.tolist() == wanted.tolist()
    if long:
        assert len(reads) == len(wanted) + (len(wanted) > 1), (
            "each by itself, and the first to see how large"
        )
    else:
        assert len(reads) == 2


@given(data=st.data())
def test_chosen_rows_are_read_as_they_are(data, tmp_path_factory):
    count = 60
    items = [np.full(2, n) if n % 11 else None for n in range(count)]  # some cannot be read
    source = open_source(items[1:])
    rows = data.draw(st.lists(st.integers(0, count - 2), unique=True).map(sorted))
    folder = tmp_path_factory.mktemp("rows")
    selection = load(Selection(np.array(rows, np.int64)).save(folder))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    chunk, numbers = selection.read(source, start, stop)
    wanted = rows[start:stop]
    assert numbers.tolist() == chunk.keys.tolist() == wanted
    failed = [row for row in wanted if (row + 1) % 11 == 0]
    assert [failure.row for failure in chunk.failures] == failed
    good = [row for row in wanted if row not in failed]
    values = dict(zip(wanted, chunk.columns[""][:, 0].tolist(), strict=True))
    assert [values[row] for row in good] == [row + 1 for row in good]
