"""What files are called in which format, and what may be said about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import ConfigError, InputError

FORMATS: dict[str, tuple[str, ...]] = {
    "images": (".jpg", ".jpeg", ".png", ".webp"),
    "npy": (".npy", ".npz"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
    "tfrecord": (".tfrecord", ".tfrecords"),
}
_TABLE = ("columns", "key", "features", "fill")
IMAGE_OPTIONS = ("size", "mode", "resample", "fit", "draft")
OPTIONS: dict[str, tuple[str, ...]] = {
    "images": ("decode", *IMAGE_OPTIONS),
    "npy": ("columns", "key"),
    "parquet": (*_TABLE, "images", *IMAGE_OPTIONS),
    "arrow": (*_TABLE, "images", *IMAGE_OPTIONS),
    "csv": (*_TABLE, "delimiter", "header"),
    "jsonl": _TABLE,
    "tfrecord": ("columns", "key", "features", "images", *IMAGE_OPTIONS),
    "arrays": ("columns", "key"),
    "rows": ("key",),
    "dataset": ("key", "batched"),
}


def suffixes_of(format: str | None = None) -> tuple[str, ...]:
    """The suffixes of a format, or all that are known."""
    if format is not None and format not in FORMATS:
        raise ConfigError(f"format: expected one of {', '.join(FORMATS)}; got {format!r}")
    families = FORMATS.values() if format is None else [FORMATS[format]]
    return tuple(suffix for family in families for suffix in family)


def told_by_suffix(names: Iterable[str]) -> str:
    """The one format that files of these names have."""
    found: dict[str, str] = {}
    last: tuple[str, ...] = ()
    for name in names:
        lower = name.lower()
        if lower.endswith(last):  # as the one before: there may be millions
            continue
        family = next((f for f, suffixes in FORMATS.items() if lower.endswith(suffixes)), "")
        if not family:
            raise InputError(
                f"{name}: expected a suffix that is known ({', '.join(suffixes_of())}), "
                f"or format=…, one of {', '.join(FORMATS)}"
            )
        found.setdefault(family, name)
        last = FORMATS[family]
    if len(found) > 1:
        shown = ", ".join(f"{family} ({name})" for family, name in found.items())
        raise InputError(f"expected files of one kind, got {shown}: say which with format=…")
    return next(iter(found))


def check_options(what: str, possible: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an option that is not possible."""
    unknown = [name for name in options if name not in possible]
    if unknown:
        expected = ", ".join(possible) or "none"
        raise ConfigError(f"{what}: unknown option {', '.join(unknown)}; expected {expected}")
