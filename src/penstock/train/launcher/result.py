"""How an attempt went, on one machine or on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.train.launcher.blame import Ending, first_real


class How(StrEnum):
    """`OUTSIDE`: told to stop because of another machine."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    OUTSIDE = "outside"


@dataclass(frozen=True)
class Result:
    """How it went, and who is to blame."""

    how: How
    blame: Ending | None = None

    @property
    def may_pass(self) -> bool:
        """Whether it failed, and may not if it is tried again."""
        return self.how is How.FAILED and not (self.blame is not None and self.blame.is_certain)

    def to_dict(self) -> dict[str, Any]:
        """As it goes to another machine."""
        blame = self.blame
        told = {"how": self.how.value}
        if blame is None:
            return told
        return told | {
            "blame": [blame.name, blame.code, blame.at, list(blame.tail), blame.reason],
        }

    @classmethod
    def from_dict(cls, told: Any) -> Result:
        """Back again. Raises `ValueError`."""
        try:
            blame = told.get("blame")
            if blame is None:
                return cls(How(told["how"]))
            name, code, at, tail, reason = blame
            code = None if code is None else int(code)
            ending = Ending(str(name), code, float(at), tuple(map(str, tail)), str(reason))
            return cls(How(told["how"]), ending)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no result: {error!r}") from None


def joined(results: Sequence[Result]) -> Result:
    """What the machines' results mean together."""
    if any(result.how is How.INTERRUPTED for result in results):
        return Result(How.INTERRUPTED)
    failed = [result.blame for result in results if result.how is How.FAILED and result.blame]
    if failed:
        return Result(How.FAILED, first_real(failed))
    return Result(How.DONE)
