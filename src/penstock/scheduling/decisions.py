"""What the batcher decides: which jobs leave for which worker as one batch, and why now."""

from __future__ import annotations

import enum
from typing import NamedTuple

from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
from penstock.scheduling.runners import Runner


class Closed(enum.Enum):
    """Why a batch was closed and sent."""

    FULL = "full"  # no more rows fit
    IDLE = "idle"  # the worker had nothing to do, and nobody was expected
    AHEAD = "ahead"  # the worker was about to finish its last batch
    COMPLETE = "complete"  # everybody who was waited for has come
    WAITED = "waited"  # somebody who was waited for has not come in time
    DEADLINE = "deadline"  # a row could not wait any longer, or not run with more than these
    FITTING = "fitting"  # it fills a compiled size; a few rows more would have been mostly padding
    PART = "part"  # the rest follows beside it, while those in it are answered
    SINGLE = "single"  # it is not batched
    SUSPECT = "suspect"  # a row that may have killed its worker


class Decision(NamedTuple):
    """Send these jobs to that runner, as one batch."""

    runner: Runner
    lane: Lane
    jobs: list[Job]
    alone: bool
    closed: Closed
