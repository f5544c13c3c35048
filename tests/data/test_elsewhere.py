"""Every kind of file read from file systems that are not this machine's, and written to one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from penstock.data import open_sink, open_source, reopen
from penstock.data.atomic import publish, staged
from penstock.errors import InputError
from tests.data.collections_of_rows import COLUMNS, FEATURES, NAMES, NUMBERS, PIXELS, ROWS, write
from tests.data.pictures import fill
from tests.data.web import Server, serving

Where = Callable[[list[str]], list[str]]


def _archive(folder: Path) -> list[str]:
    np.savez_compressed(folder / "all.npz", x=PIXELS, n=NUMBERS)
    return [str(folder / "all.npz")]


def _pictures(folder: Path) -> list[str]:
    return [str(folder / name) for name in sorted(fill(folder))]


FILES: dict[str, tuple[Callable[[Path], list[str]], dict[str, Any]]] = {
    "npy": (lambda folder: write(".npy", folder, {"x": PIXELS}), {}),
    "npz": (_archive, {}),
    "images": (_pictures, {"size": 8}),
    "parquet": (lambda folder: write(".parquet", folder), {"key": "key"}),
    "arrow": (lambda folder: write(".arrow", folder), {"key": "key"}),
    "csv": (lambda folder: write(".csv", folder, {"n": NUMBERS, "t": COLUMNS["t"]}), {}),
    "jsonl": (lambda folder: write(".jsonl", folder), {"features": {"x": ("float32", (2, 3))}}),
    "tfrecord": (lambda folder: write(".tfrecord", folder), {"features": FEATURES}),
}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture(params=["memory", "http"])
def there(request: pytest.FixtureRequest, tmp_path: Path, web: Server) -> Where:
    """Puts files there; returns their addresses."""
    if request.param == "http":
        return lambda paths: [web.url(Path(path).name) for path in paths]
    memory = fsspec.filesystem("memory")

    def put(paths: list[str]) -> list[str]:
        for path in paths:
            memory.pipe(f"/{tmp_path.name}/{Path(path).name}", Path(path).read_bytes())
        return [f"memory://{tmp_path.name}/{Path(path).name}" for path in paths]

    return put


@pytest.mark.parametrize("kind", sorted(FILES))
def test_what_is_read_there_is_what_is_read_here(kind: str, there: Where, tmp_path: Path) -> None:
    make, options = FILES[kind]
    paths = make(tmp_path)
    here, elsewhere = open_source(paths, **options), open_source(there(paths), **options)
    assert (elsewhere.rows, elsewhere.signature) == (here.rows, here.signature)
    again = reopen(elsewhere.describe())
    assert again.fingerprint() == elsewhere.fingerprint()
    for start, stop in ((0, 1000), (3, 9), (here.rows or 0, 1000)):
        expected = here.read(start, stop)
        for chunk in (elsewhere.read(start, stop), again.read(start, stop)):
            assert len(chunk) == len(expected)
            assert [f.row for f in chunk.failures] == [f.row for f in expected.failures]
            for name, column in expected.columns.items():
                assert np.array_equal(chunk.columns[name], column)


def test_only_the_part_of_a_file_that_is_needed_is_fetched(tmp_path: Path, web: Server) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.random.default_rng(0).random(1_000_000)
    pq.write_table(pa.table({"n": numbers}), tmp_path / "x.parquet", row_group_size=100_000)
    whole = (tmp_path / "x.parquet").stat().st_size
    source = open_source([web.url("x.parquet")])
    assert np.array_equal(source.read(999_990, 1_000_000).columns["n"], numbers[-10:])
    assert 0 < web.sent["x.parquet"] < whole / 2


@pytest.mark.parametrize("tag", ["ETag", "Last-Modified", "Content-MD5"])
def test_a_file_that_is_changed_or_gone_there(tmp_path: Path, web: Server, tag: str) -> None:
    web.tag = tag
    (path,) = _archive(tmp_path)
    before = open_source([web.url("all.npz")]).fingerprint()
    os.utime(path)  # perhaps other rows, of the same size
    assert open_source([web.url("all.npz")]).fingerprint() != before
    with pytest.raises((InputError, FileNotFoundError), match=r"none\.npz"):
        open_source([web.url("none.npz")])


@pytest.mark.parametrize("names", [["a.jpg"], ["b.jpg", "a.jpg", "c.jpg"]])
def test_a_file_that_is_not_sent_is_named(tmp_path: Path, web: Server, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"no image")
    web.broken.add("a.jpg")
    source = open_source([web.url(name) for name in names], decode=False)
    with pytest.raises(InputError, match=r"/a\.jpg cannot be read \(ClientResponseError: 500"):
        source.read(0, len(names))


def test_a_server_that_sends_no_parts_of_files_is_told(tmp_path: Path, web: Server) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    web.ranges = False
    with pytest.raises(InputError, match=r"asked for, got 12: its server does not send parts"):
        open_source([web.url("x.csv")])


def test_a_host_that_does_not_answer_is_no_missing_file(tmp_path: Path, web: Server) -> None:
    with pytest.raises(InputError, match=r"there is no file or folder at http://.*none\.npz"):
        open_source([web.url("none.npz")])
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"{host} did not answer: .*Connect call failed"):
            open_source(f"http://{host}/x.npz")
    web.refused.add("secret.npz")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:\d+ answered 403 Forbidden"):
        open_source([web.url("secret.npz")])


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".npy", ".jsonl", ".tfrecord", ".csv"])
def test_what_is_written_there_is_what_is_written_here(suffix: str, tmp_path: Path) -> None:
    sink = open_sink(f"x{suffix}")
    columns = {"n": NUMBERS} if suffix == ".npy" else {"n": NUMBERS, "t": COLUMNS["t"]}
    outs = [str(tmp_path / f"y{suffix}"), f"memory://{tmp_path.name}/y{suffix}"]
    for out in outs:
        parts = []
        for start, stop in ((0, 7), (7, ROWS)):
            parts.append(f"{out}.{start}{suffix}")
            with staged(parts[-1]) as file:
                some = {name: array[start:stop] for name, array in columns.items()}
                sink.write(file, some, NAMES[start:stop] if sink.keeps_keys else None)
            publish(parts[-1])
        with staged(out) as file:
            sink.join(parts, file)
        publish(out)
    memory = fsspec.filesystem("memory")
    assert memory.cat(f"/{tmp_path.name}/y{suffix}") == Path(outs[0]).read_bytes()
