"""The part `tight`: a card that another process has filled but for little.

For each amount an engine is started with the network. It may answer, rightly; or refuse, with the
amounts of memory in its words. Anything else is a failure.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.core.processes import Child, ChildFailed, children
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row
from benchmarks.gpu.served import Refused, ServedNetwork

ANSWERED, REFUSED, FAILED = "answered", "refused", "failed"
_FILLED_WITHIN = 60.0
_AMOUNT = re.compile(r"\d[\d.,]*\s?[KMGT]i?B?\b", re.IGNORECASE)


def run(bench: Bench) -> Iterator[Row]:
    """One row an amount, from the largest to the smallest."""
    with children([["benchmarks.gpu.filler"]], bench.place) as [filler]:
        for gigabytes in sorted(bench.plan.tight, reverse=True):
            yield _tried(bench, filler, gigabytes)


def _tried(bench: Bench, filler: Child, gigabytes: float) -> Row:
    filler.say({"leave": int(gigabytes * (1 << 30))})
    free = filler.hear(time.monotonic() + _FILLED_WITHIN)["free"]
    began = time.monotonic()
    outcome, text, facts = _outcome(bench)
    took = time.monotonic() - began
    return Row(
        f"{gigabytes:g} GiB free: {outcome}",
        note=f"after {took:.1f} s. {text.splitlines()[0] if text else ''}",
        details={
            "gib": gigabytes,
            "free_bytes": free,
            "outcome": outcome,
            "text": text,
            "took_s": round(took, 1),
            "facts": facts,
        },
    )


def _outcome(bench: Bench) -> tuple[str, str, dict[str, Any]]:
    try:
        engine = ServedNetwork(bench.place, bench.settings, within=bench.plan.tight_within)
    except Refused as refusal:
        named = refusal.kind == "DeviceMemoryError" or "memory" in refusal.text.lower()
        numbers = len(_AMOUNT.findall(refusal.text)) >= 2
        return (REFUSED if named and numbers else FAILED), str(refusal), {}
    except ChildFailed as failure:
        return FAILED, str(failure), {}
    try:
        engine.answer(bench.plan.tight_rows)
        device = engine.facts.get("device")
        return ANSWERED, f"Ready after {engine.ready_s:.1f} s, on the {device}", engine.facts
    except ChildFailed as failure:
        return FAILED, str(failure), engine.facts
    finally:
        engine.close()
