"""The same forty rows in every format that a source reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from penstock.data import Source, open_sink, open_source
from tests.data.pictures import encoded, scene

ROWS = 40
PIXELS = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3) / 8
NUMBERS = np.arange(ROWS) * 3 - 7
TEXTS = np.array([f"row {row}, «{row % 3}»\n" for row in range(ROWS)], object)
NAMES = np.array([f"id{row}" for row in range(ROWS)], object)
COLUMNS = {"x": PIXELS, "n": NUMBERS, "t": TEXTS}
FEATURES = {"x": ("float32", (2, 3)), "n": "int64", "t": "string"}
CUTS = (0, 0, 7, 8, 23, ROWS)  # one of the files is empty


def write(suffix: str, folder: Path, columns: dict[str, Any] = COLUMNS) -> list[str]:
    """The rows in several files."""
    sink = open_sink(f"x{suffix}")
    paths = []
    for at, (start, stop) in enumerate(itertools.pairwise(CUTS)):
        path = folder / f"part{at}{suffix}"
        with path.open("wb") as file:
            part = {name: array[start:stop] for name, array in columns.items()}
            sink.write(file, part, NAMES[start:stop] if sink.keeps_keys else None)
        paths.append(str(path))
    return paths


class Squares:
    """Something with a length and `[…]`."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        if row in (5, 11):
            raise KeyError(f"no square {row}")
        return {"n": row * row, "x": np.full(3, row, np.float32)}


def generated() -> Any:
    return ({"n": row, "t": f"t{row}"} for row in range(ROWS))


def _npz(folder: Path, save: Callable[..., None]) -> Source:
    save(folder / "all.npz", x=PIXELS, n=NUMBERS)
    return open_source(folder / "all.npz")


def _images(folder: Path) -> Source:
    for row in range(ROWS):
        data = encoded(scene(20 + row, 20), "PNG")
        (folder / f"{row}.png").write_bytes(data if row % 9 else data[:50])
    return open_source(folder, size=8)


def _memory(folder: Path) -> Source:
    paths = write(".parquet", folder)
    memory = fsspec.filesystem("memory")
    for path in paths:
        memory.pipe(f"/{folder.name}/{Path(path).name}", Path(path).read_bytes())
    return open_source(f"memory://{folder.name}/*.parquet", key="key")


def _csv(folder: Path) -> Source:
    return open_source(write(".csv", folder, {"n": NUMBERS, "t": TEXTS}))


def _broken_csv(folder: Path) -> Source:
    lines = ["a,b"] + [f"{row},{'x' if row % 5 == 0 else row / 4}" for row in range(ROWS)]
    lines[8] = "7,8,9"
    (folder / "broken.csv").write_text("\n".join(lines))
    return open_source(folder / "broken.csv", features={"b": "float32"})


KINDS: dict[str, Callable[[Path], Source]] = {
    "array": lambda folder: open_source(PIXELS),
    "arrays": lambda folder: open_source(COLUMNS | {"id": NAMES}, columns=["x", "t"], key="id"),
    "npy": lambda folder: open_source(write(".npy", folder, {"x": PIXELS})),
    "npz": lambda folder: _npz(folder, np.savez),
    "npz compressed": lambda folder: _npz(folder, np.savez_compressed),
    "images": _images,
    "parquet": lambda folder: open_source(write(".parquet", folder)),
    "arrow": lambda folder: open_source(write(".arrow", folder), columns=["t", "x"], key="key"),
    "memory": _memory,
    "csv": _csv,
    "broken csv": _broken_csv,
    "jsonl": lambda folder: open_source(
        write(".jsonl", folder), features={"x": ("float32", (2, 3))}
    ),
    "tfrecord": lambda folder: open_source(write(".tfrecord", folder), features=FEATURES),
    "indexed": lambda folder: open_source(Squares()),
    "list": lambda folder: open_source([np.full(2, row) for row in range(ROWS)]),
    "factory": lambda folder: open_source("tests.data.collections_of_rows:generated", key="t"),
}
