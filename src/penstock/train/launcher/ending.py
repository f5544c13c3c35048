"""What is told of a job at its end: the first real error before all, then how each task ended."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from penstock import launch
from penstock.train.launcher.attempt import Attempt
from penstock.train.launcher.blame import Ending
from penstock.train.launcher.job import Job
from penstock.train.launcher.lines import Page
from penstock.train.launcher.pace import lines_of, scaling
from penstock.train.launcher.result import How, Result


class Story:
    """The attempts of a job, one after the other."""

    def __init__(self, job: Job, page: Page) -> None:
        self._job, self._page = job, page
        self._began = time.monotonic()
        self._attempts = 0
        self._tasks: list[dict[str, Any]] = []

    def add(self, attempt: Attempt, result: Result) -> None:
        """One has ended."""
        self._attempts += 1
        self._tasks = [
            {
                "name": task.name,
                "code": task.popen.returncode,
                "device": task.seat.name,
                "seconds": round(task.ended - task.began, 3),
            }
            for task in attempt.tasks.values()
        ]
        if result.how is not How.FAILED or result.blame is None:
            return
        blame = result.blame
        self._page.say(f"{blame.name} failed first: {blame.headline}", bad=True)
        for line in attempt.said(blame.name) or blame.excerpt:
            self._page.quote(line)
        others = [task for task in attempt.tasks.values() if task.name != blame.name]
        hidden = attempt.hidden + sum(len(attempt.said(task.name)) for task in others)
        if hidden:
            self._page.say(f"{hidden} lines that the others wrote while ending are left out")
        for task in others:
            told, why = launch.exit_text(task.popen.returncode), attempt.consequence(task.name)
            self._page.say(f"{task.name}: {told}{f' of {why}' if why else ''}")

    def restarting(self, number: int, result: Result) -> None:
        """All begin again."""
        begins = (
            f"from the newest checkpoint in {self._job.checkpoints}"
            if self._job.checkpoints
            else "from where the script's own checkpoints say (--checkpoints names none)"
        )
        self._page.say(f"restart {number} of {self._job.restarts}, {begins}")

    def end(self, result: Result, summary: Any) -> None:
        """All is over."""
        seconds = time.monotonic() - self._began
        pace = scaling(self._job, self._device(), summary) if result.how is How.DONE else None
        if self._job.as_json:
            told = {
                "outcome": result.how.value,
                "attempts": self._attempts,
                "seconds": round(seconds, 3),
                "tasks": self._tasks,
                "error": _error(result.blame),
                "training": summary,
                "scaling": pace,
            }
            sys.stdout.write(json.dumps(told, indent=2) + "\n")
            sys.stdout.flush()
            return
        if result.how is How.INTERRUPTED:
            self._page.say("interrupted; every process has ended")
        elif result.how is How.DONE:
            self._page.say(f"done in {seconds:.1f} s{_nothing_done(summary)}")
            for line in lines_of(pace):
                self._page.say(line)

    def _device(self) -> str:
        """What workers compute on."""
        return next((t["device"] for t in self._tasks if t["name"].startswith("worker")), "")


def _nothing_done(summary: Any) -> str:
    """Where a run was taken up at its end."""
    steps = summary.get("resumed_at_step") if isinstance(summary, dict) else None
    if steps is None or steps != summary.get("steps"):
        return ""
    return f": nothing was left to do, the newest checkpoint is of step {steps}, the last one"


def _error(blame: Ending | None) -> dict[str, Any] | None:
    if blame is None:
        return None
    return {"task": blame.name, "text": blame.headline, "lines": blame.excerpt}
