"""Recordings as an engine sends them, made up."""

from __future__ import annotations

import json

from penstock.statistics import (
    BatchStatistics,
    ModelStatistics,
    RequestStatistics,
    Statistics,
    WorkerStatistics,
)

SINCE = 1_000_000_000_000
SECOND = 1_000_000_000


def engine(workers=1, **model):
    """An engine with one model."""
    nothing = RequestStatistics(0, 0, 0, 0, 0, 0, 0, {})
    settings = {"name": "m", "max_batch": 8, "batched": True, **model}
    return Statistics(
        name="e",
        pid=1,
        state="ready",
        healthy=True,
        uptime=1.0,
        requests=nothing,
        batches=BatchStatistics(0, 0, {}),
        deaths=0,
        restarts=0,
        models=(ModelStatistics(**settings),),
        workers=tuple(
            WorkerStatistics(index, 10 + index, "cpu", "ready", True, 1, 0, 0, 0.0, 0, 0)
            for index in range(workers)
        ),
        clients=(),
    )


def recorded(*batches, since=SINCE, until=SINCE + SECOND, left_out=0, more=False, clients=None):
    """The engine's answer; times in batches count from `SINCE`."""
    return json.dumps(
        {
            "since": since,
            "until": until,
            "left_out": left_out,
            "more": more,
            "models": ["m"],
            "clients": clients or {},
            "workers": [],
            "batches": [_batch(**batch) for batch in batches],
        }
    ).encode()


def _batch(
    *,
    number=1,
    worker=0,
    sent=0,
    began=0,
    ended=0,
    gather=0,
    run=0,
    scatter=0,
    rows=1,
    size=1,
    closed="idle",
    requests=((1, 1, 1, 0),),
):
    return {
        "batch": number,
        "worker": worker,
        "model": 0,
        "rows": rows,
        "size": size,
        "closed": closed,
        "sent": SINCE + sent,
        "began": SINCE + began,
        "gather": gather,
        "run": run,
        "scatter": scatter,
        "ended": SINCE + ended,
        "requests": [(c, n, r, SINCE + admitted) for c, n, r, admitted in requests],
    }
