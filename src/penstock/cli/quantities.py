"""Quantities as people read them, in few characters."""

from __future__ import annotations


def number(value: float) -> str:
    """`0`, `3.2`, `12`, `1,234`."""
    return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"


def milliseconds(seconds: float) -> str:
    """`0.12`, `3.4`, `56`."""
    value = seconds * 1e3
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def size(count: int) -> str:
    """`0 MB`, `0.4 MB`, `31 MB`, `1.5 GB`."""
    value, unit = (count / 2**30, "GB") if count >= 2**30 else (count / 2**20, "MB")
    return f"{value:.1f} {unit}" if 0 < value < 10 else f"{value:.0f} {unit}"


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `5 h`, `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
