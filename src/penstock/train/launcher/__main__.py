"""The supervisor: starts the tasks, shows what they say, starts all again if it may, tells the end.

Exit codes as the command's: 0, 1 (failed), 130 (told to end).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock import launch
from penstock.errors import PenstockError
from penstock.train.launcher import layout
from penstock.train.launcher.attempt import Attempt
from penstock.train.launcher.cards import seats
from penstock.train.launcher.ending import Story
from penstock.train.launcher.job import Job
from penstock.train.launcher.lines import Page, wants_colour
from penstock.train.launcher.peers import peers_of
from penstock.train.launcher.result import How, Result
from penstock.train.launcher.watch import Watch

CODES = {How.DONE: 0, How.FAILED: 1, How.INTERRUPTED: 130}


def main() -> int:
    """Run the job that the owner has described; returns the exit code."""
    settings, descriptors = launch.read_settings(sys.argv)
    launch.adopt_orphans()
    watch = Watch(descriptors["owner"])
    job = Job.from_json(settings)
    file = sys.stderr if job.as_json else sys.stdout
    page = Page([place.name for place in layout.here(job)], file, wants_colour(file))
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-train-") as place:
            return _supervise(job, watch, page, str(Path(place) / "summary.json"))
    except PenstockError as error:
        page.say(f"error: {error}", bad=True)
        return 1
    except BrokenPipeError:  # nobody reads what is shown; the tasks have been ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        return 1


def _supervise(job: Job, watch: Watch, page: Page, summary: str) -> int:
    places = seats(job, layout.here(job), promise=True)
    story = Story(job, page)
    with contextlib.closing(peers_of(job, watch, page.say)) as peers:
        left, number = job.restarts, 0
        while True:
            begun = peers.begin(number)
            if begun is None:
                result = Result(How.INTERRUPTED)
                break
            attempt = Attempt(job, begun, left, places, watch, page, peers, summary)
            own = attempt.run()
            left = attempt.spare
            result, again = peers.agree(own, left)
            story.add(attempt, result)
            if not again:
                break
            left, number = left - 1, begun + 1
            story.restarting(number, result)
    story.end(result, _read(summary))
    return CODES[result.how]


def _read(summary: str) -> Any:
    """What the chief's training has written about itself, if it has."""
    try:
        return json.loads(Path(summary).read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
