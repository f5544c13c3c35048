"""The part `tune`: how long tuning takes with empty caches and with full ones, and what it chose.

What it finds is left in the caches of the run where this part is the first: then engines start from
it as a user's would.

The largest batch that it chose is then measured as the part `limit` measures sizes, without
Penstock, so that it can be compared with the best of all sizes, whichever those were.
"""

import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.core.processes import ChildFailed, children
from benchmarks.gpu import sweep
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row
from benchmarks.models.images import NETWORK
from penstock.config import Model

_WITHIN = 400.0


def run(bench: Bench) -> Iterator[Row]:
    """Tuning twice, and the size that was chosen."""
    place = bench.place
    fields = {field.name for field in dataclasses.fields(Model)}
    settings = {name: value for name, value in bench.settings.items() if name in fields}
    command = ["benchmarks.gpu.tuner", str(place.files / NETWORK), json.dumps(settings)]
    told: dict[str, Any] = {}
    command += ["cpu" if place.cpu else "", *(["anew"] if place.has_caches else [])]
    with children([command], place) as [child]:
        for caches in ("nothing cached", "cached"):
            told = child.hear(time.monotonic() + _WITHIN)
            if "refused" in told:
                raise ChildFailed(f"{told['refused']}: {told['text']}")
            plan = told["plan"]
            note = f"{told['seconds']:.1f} s: {plan['mode']}, {plan['max_batch']} rows at most"
            yield Row(f"penstock tune, {caches}", plan["rows_per_second"], note=note, details=told)
    yield sweep.cell(bench, told["plan"]["mode"], told["plan"]["max_batch"])
