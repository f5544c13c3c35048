"""`open_source`: from what people write to the source that reads it.

Texts and paths are files (told apart by their suffixes), folders, patterns, `@lists` or factories
`module:function`; arrays, dicts of arrays, Datasets and other Python objects are what they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.arrays import ArrayFile, Arrays
from penstock.data.commas import CommaFile
from penstock.data.factories import is_factory, resolve
from penstock.data.features import features_of
from penstock.data.formats import (
    IMAGE_OPTIONS,
    OPTIONS,
    check_options,
    suffixes_of,
    told_by_suffix,
)
from penstock.data.images import Decoded, Decoder
from penstock.data.joined import Joined, OpenFile
from penstock.data.jsonlines import JsonFile
from penstock.data.listing import Listing, list_files
from penstock.data.raw import RawFiles
from penstock.data.records import RecordFile
from penstock.data.rows import Indexed, Stream
from penstock.data.source import Source
from penstock.data.tables import ArrowGroups, LastGroup, ParquetGroups, TableFile
from penstock.data.tfdata import dataset_source, is_dataset
from penstock.errors import ConfigError, InputError


def open_source(
    what: Any, *, format: str | None = None, without: Sequence[str] = (), **options: Any
) -> Source:
    """Open a data set for reading.

    `what` is a file, a folder, a pattern, a list of these, `@list.txt`, `module:function`, an
    array, a dict of arrays, a `tf.data.Dataset`, or any Python sequence or iterable. `format` is
    one of `FORMATS`, where suffixes do not tell. `without` are files that folders and patterns do
    not mean, as `listing` says. The options depend on the format: `docs/data.md`.
    """
    if isinstance(what, Source):
        check_options(type(what).__name__, (), options)
        return what
    description = described(what, format=format, without=without, **options)
    if description is not None:
        return open_described(description)
    if format is not None:
        raise ConfigError(f"format: only for files; got {format!r} for a {type(what).__name__}")
    return _open_object(what, options)


def described(
    what: Any, *, format: str | None = None, without: Sequence[str] = (), **options: Any
) -> dict[str, Any] | None:
    """What `open_described` takes, where files or a factory are named; `None` for objects."""
    if not isinstance(what, (str, os.PathLike)) and not _is_paths(what):
        return None
    return {
        "what": _texts(what),
        "base": os.getcwd(),
        "format": format,
        "options": _jsonable(options),
        "without": list(without),
    }


def list_described(description: Mapping[str, Any]) -> Listing | None:
    """The files of a description; `None` for a factory."""
    if "listing" in description:
        return Listing.load(description["listing"])
    what, base = description["what"], description["base"]
    if isinstance(what, str) and is_factory(what, base):
        return None
    suffixes = suffixes_of(description["format"])
    without = description.get("without", ())
    return list_files(what, lambda name: name.lower().endswith(suffixes), base, without)


def open_described(description: Mapping[str, Any], listing: Listing | None = None) -> Source:
    """The source of a description, from any folder. `listing`: its files, if they are known."""
    what, base, format = description["what"], description["base"], description["format"]
    options = dict(description["options"])
    listing = list_described(description) if listing is None else listing
    if listing is None:
        source = _open_factory(what, base, options)
        source.listed = None  # the description is the factory's, whatever it has opened
    elif len(listing):
        kind = format or told_by_suffix(listing.names)
        source = _open_files(listing, kind, options)
        source.listed = listing
    else:
        raise InputError(
            f"there are no files to read in {what!r}; expected some that end in "
            + ", ".join(suffixes_of(format))
        )
    source.description = {name: value for name, value in description.items() if name != "only"}
    return source.only(description["only"]) if "only" in description else source


def _open_files(listing: Listing, format: str, options: Mapping[str, Any]) -> Source:
    check_options(format, OPTIONS[format], options)
    given = dict(options)
    if format == "images":
        raw = RawFiles(listing)
        if given.pop("decode", True):
            return Decoded(raw, _decoder(given))
        check_options("images that are not decoded", (), given)
        return raw
    pictures = {name: given.pop(name) for name in IMAGE_OPTIONS if name in given}
    images = given.pop("images", None)
    shared: dict[str, Any] = {name: given.pop(name, None) for name in ("columns", "key")}
    features = features_of(given.pop("features", None))
    fill = given.get("fill") or {}
    if not isinstance(fill, Mapping):
        raise ConfigError(f"fill: expected a dict of name: value, got {fill!r}")
    source: Source = Joined(
        listing,
        _opener(format, listing, given),
        features=features,
        options={**given, "features": sorted(features.items())},
        **shared,
    )
    if shared["columns"] is None and source.rows:  # else not all of them are known
        _check_names("features", features, source)
        _check_names("fill", fill, source)
    if images is not None:
        return Decoded(source, _decoder(pictures), images)
    check_options(f"{format} without images=…", (), pictures)
    return source


def _check_names(option: str, names: Iterable[str], source: Source) -> None:
    known = [spec.name for spec in source.signature]
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: there is no column {name!r}; there are {known}")


def _opener(format: str, listing: Listing, given: dict[str, Any]) -> OpenFile:
    if format == "csv" and listing.names[0].lower().endswith(".tsv"):
        given.setdefault("delimiter", "\t")
    kinds: dict[str, Callable[..., Any]] = {
        "npy": ArrayFile,
        "parquet": functools.partial(TableFile, groups=ParquetGroups, last=LastGroup()),
        "arrow": functools.partial(TableFile, groups=ArrowGroups, last=LastGroup()),
        "csv": CommaFile,
        "jsonl": JsonFile,
        "tfrecord": RecordFile,
    }
    return functools.partial(kinds[format], **given)


def _open_object(what: Any, options: Mapping[str, Any]) -> Source:
    name = f"{type(what).__module__}.{type(what).__qualname__}"
    if isinstance(what, Mapping):
        check_options("arrays", OPTIONS["arrays"], options)
        return Arrays(what, **options)
    if isinstance(what, np.ndarray):
        check_options("arrays", ("key",), options)
        return Arrays({"": what}, **options)
    if is_dataset(what):
        check_options("dataset", OPTIONS["dataset"], options)
        return dataset_source(what, name, **options)
    if callable(what) and not hasattr(what, "__len__"):
        return _open_made(what, f"{what.__module__}:{what.__qualname__}", options)
    if hasattr(what, "columns") and hasattr(what, "__getitem__"):  # pandas, polars, Arrow
        names = getattr(what, "column_names", None) or what.columns
        return _open_object({str(name): what[name].to_numpy() for name in names}, options)
    if hasattr(what, "__array__"):
        return _open_object(np.asarray(what), options)
    check_options("rows", OPTIONS["rows"], options)
    if hasattr(what, "__getitem__") and hasattr(what, "__len__"):
        return Indexed(what, name, **options)
    if isinstance(what, Iterator):
        return Stream(lambda: what, name, once=True, **options)
    if hasattr(what, "__iter__"):
        return Stream(lambda: what, name, **options)
    raise InputError(
        "expected files (a path, a folder, a pattern, a list), 'module:function', an array, a dict "
        f"of arrays, a tf.data.Dataset, a sequence or an iterable; got a {name}"
    )


def _open_factory(text: str, base: str, options: Mapping[str, Any]) -> Source:
    make, content = resolve(text, base)
    return _open_made(make, f"{text} {content}", options)


def _open_made(make: Callable[[], Any], name: str, options: Mapping[str, Any]) -> Source:
    """What a factory makes; it is called again where that has to begin anew."""
    made = make()
    if isinstance(made, Source):
        check_options(name, (), options)
        return made
    if is_dataset(made):
        check_options("dataset", OPTIONS["dataset"], options)
        return dataset_source(made, name, **options)
    if isinstance(made, Iterator):
        check_options("rows", OPTIONS["rows"], options)
        return Stream(make, name, **options)
    if callable(made) and not hasattr(made, "__len__"):
        raise InputError(f"{name.split()[0]} returned a function; expected rows")
    return _open_object(made, options)


def _is_paths(what: Any) -> bool:
    return (
        isinstance(what, (list, tuple))
        and len(what) > 0
        and all(isinstance(item, (str, os.PathLike)) for item in what)
    )


def _texts(what: Any) -> str | list[str]:
    if isinstance(what, (str, os.PathLike)):
        return os.fspath(what)
    return [os.fspath(item) for item in what]


def _decoder(options: Mapping[str, Any]) -> Decoder:
    if "size" not in options:
        raise ConfigError(
            "images: expected size=(height, width), as rows have one shape, "
            "or decode=False for the files' bytes"
        )
    return Decoder(**options)


def _jsonable(options: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(options)
    if plain.get("features"):
        plain["features"] = {
            name: [spec.dtype, list(spec.shape)]
            for name, spec in features_of(plain["features"]).items()
        }
    for name in ("columns", "size", "header"):
        if isinstance(plain.get(name), tuple):
            plain[name] = list(plain[name])
    return plain
