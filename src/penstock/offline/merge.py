"""`penstock merge`: the parts of all shards as the output that one run would have written.

Parts of contiguous shards are whole runs of rows, in the output's format, and are joined as they
are. Others have rows from everywhere: they are put in order first (`ordering`). The output gets its
name last: what is there is whole.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.data.arraysink import NpySink
from penstock.data.atomic import named_errors, publish, staged
from penstock.data.chunk import Array
from penstock.errors import ConfigError, PenstockError
from penstock.offline.ending import remove, size_of, write_output
from penstock.offline.forms import check_forms
from penstock.offline.locks import sole_writer
from penstock.offline.manifest import Manifest, open_manifest
from penstock.offline.options import SINK_OPTIONS
from penstock.offline.ordering import in_order
from penstock.offline.parts import DATA, ERRORS, KEYS, PartStore, forms_in
from penstock.offline.place import Place, place_of
from penstock.offline.settings import JobSettings


@dataclass(frozen=True)
class Merged:
    """What was joined."""

    out: str
    shards: int
    rows: int
    written: int
    failed: int
    errors: str


def merge(out: Any, *, work: str = "", restart: bool = False, **options: Any) -> Merged:
    """Join what `predict(…, out, shard=…)` has left beside `out`, or in `work`.

    `options` are the output's, by default those of the shards. Raises `ConfigError` when a shard is
    missing, is not whole, or is about something else, or while a job writes `out`. The shards stay;
    an output that exists already is overwritten only with `restart`.
    """
    place = place_of(out, JobSettings(work=work), options)
    found: list[tuple[Place, Manifest]] = []
    try:
        with sole_writer(place.lock):
            shards = place.shards()
            if shards and size_of(place.out) >= 0 and not restart:
                raise ConfigError(
                    f"{place.out} exists already: overwrite it with --restart (restart=True)"
                )
            for shard in shards:
                found.append((shard, open_manifest(shard.manifest)))
            return _merged(place, found)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ConfigError(f"{where}{error.strerror or error}") from error
    finally:
        for _, manifest in found:
            manifest.close()


def _merged(place: Place, found: list[tuple[Place, Manifest]]) -> Merged:
    headers = [manifest.header for _, manifest in found]
    _check(place, found, headers)
    chosen = headers[0]["identity"]["options"]
    place = replace(place, options={**_of_the_sink(chosen), **place.options})
    way = chosen["shards"][1]
    whole = way == "contiguous"
    stores = [replace(shard, whole=whole).store() for shard, _ in found]
    parts = [manifest.parts for _, manifest in found]
    forms = [some for facts in parts for some in forms_in(facts.values())]
    for some in forms:
        check_forms(forms[0], some, "between shards")
    for store, facts in zip(stores, parts, strict=True):
        store.check(facts, "run its shard again with --restart (restart=True)")
    done = [manifest.done for _, manifest in found]
    written, failed = (sum(facts[name] for facts in done) for name in ("written", "failed"))
    if headers[0]["rows"] != written + failed:
        raise PenstockError(
            f"{headers[0]['rows']:,} rows went in; the shards have {written:,} and {failed:,} "
            "that failed: some are missing"
        )
    errors = _write_errors(place, stores, parts)
    empty = {name: np.empty(shape, dtype) for name, (dtype, shape) in done[0]["empty"].items()}
    if whole:
        order = sorted(zip(found, stores, parts, strict=True), key=lambda entry: _index(entry[0]))
        data = [path for _, store, facts in order for path in store.paths(facts, DATA)]
        keys = [path for _, store, facts in order for path in store.paths(facts, KEYS)]
        write_output(place, data, keys, empty, written)
    else:
        _write_in_order(place, stores, parts, written, empty)
    return Merged(place.out, len(found), written + failed, written, failed, errors)


def _check(
    place: Place, found: list[tuple[Place, Manifest]], headers: list[dict[str, Any]]
) -> None:
    if not found:
        raise ConfigError(f"there are no shards of {place.out} in {place.work}")
    count = int(found[0][0].shard.rpartition("-")[2])
    there = {_index(entry) for entry in found}
    missing = sorted(set(range(1, count + 1)) - there)
    if missing or len(found) > count:
        listed = ", ".join(f"{at}/{count}" for at in missing) or "none, but others are there"
        raise ConfigError(f"shards of {place.out} that are missing: {listed}")
    for (shard, manifest), header in zip(found, headers, strict=True):
        if not header or not manifest.done:
            raise ConfigError(f"shard {shard.shard} is not whole yet: run it to its end first")
        for what in ("identity", "plan", "rows"):
            mine, first = dict(header), dict(headers[0])
            if what == "identity":
                mine[what] = {**mine[what], "shard": ""}
                first[what] = {**first[what], "shard": ""}
            elif what == "plan":
                mine[what], first[what] = (each["cut"]["batch"] for each in (mine, first))
            if mine[what] != first[what]:
                raise ConfigError(
                    f"shards {found[0][0].shard} and {shard.shard} are not of one job: "
                    "their input, model, options or batches differ"
                )


def _of_the_sink(chosen: dict[str, Any]) -> dict[str, Any]:
    return {name: chosen[name] for name in SINK_OPTIONS if name in chosen}


def _index(entry: tuple[Place, Manifest]) -> int:
    return int(entry[0].shard.partition("-")[0])


def _write_in_order(
    place: Place,
    stores: list[PartStore],
    parts: list[dict[int, Any]],
    written: int,
    empty: dict[str, Array],
) -> None:
    folder = place.store().folder.with_suffix(".merging")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sink = place.sink
    data: list[str] = []
    keys: list[str] = []
    try:
        for rows in in_order(stores, parts):
            data.append(str(folder / f"{len(data):07d}{sink.suffix}"))
            with named_errors(data[-1]), open(data[-1], "wb") as file:
                rows.write(sink, file)
            if not sink.keeps_keys:
                keys.append(str(folder / f"{len(keys):07d}.keys.npy"))
                with named_errors(keys[-1]), open(keys[-1], "wb") as file:
                    NpySink().write(file, {"": rows.keys})
        write_output(place, data, keys, empty, written)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_errors(place: Place, stores: list[PartStore], parts: list[dict[int, Any]]) -> str:
    """The side files' lines, by row; in memory, as failures are few."""
    lines: list[bytes] = []
    for store, facts in zip(stores, parts, strict=True):
        for path in store.paths(facts, ERRORS):
            lines += Path(path).read_bytes().splitlines(keepends=True)
    if not lines:
        remove(place.errors)
        return ""
    with staged(place.errors) as file:
        file.writelines(sorted(lines, key=lambda line: json.loads(line)["row"]))
    publish(place.errors)
    return place.errors
