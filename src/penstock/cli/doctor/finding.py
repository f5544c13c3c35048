"""One thing that was looked at."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.Enum):
    """How it is."""

    OK = "ok"
    NOTE = "note"  # it works; something is worth knowing
    PROBLEM = "problem"  # something does not work


@dataclass(frozen=True)
class Finding:
    """`text` is what there is, `advice` what to do about it, if anything."""

    name: str
    status: Status
    text: str
    advice: str = ""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, Status.OK, text)


def note(name: str, text: str, advice: str = "") -> Finding:
    """It works, but."""
    return Finding(name, Status.NOTE, text, advice)


def problem(name: str, text: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(name, Status.PROBLEM, text, advice)
