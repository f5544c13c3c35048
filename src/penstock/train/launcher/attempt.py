"""All tasks of this machine once: started together, watched, ended together.

One failure ends the rest. What a task prints from a traceback on is held back (`held`), for if that
reads like another task's fault (`blame`), that one gets a moment to be seen failing, too; then all
are asked to end, and killed if they do not. With parameter servers the job is done when the chief
is, and a worker that dies may be started again by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from penstock import launch
from penstock.train.cluster import Cluster
from penstock.train.launcher import layout
from penstock.train.launcher.blame import Ending, first_real, shows_failure
from penstock.train.launcher.cards import Seat
from penstock.train.launcher.held import Held
from penstock.train.launcher.job import Job
from penstock.train.launcher.layout import Place
from penstock.train.launcher.lines import Page
from penstock.train.launcher.peers import Peers
from penstock.train.launcher.result import How, Result
from penstock.train.launcher.task import Task, command_of
from penstock.train.launcher.watch import Watch

_SETTLE = 2.0  # seconds in which the real cause may show itself
_QUICK = 1.0  # seconds that a task gets to end at most when another has failed
_TICK = 0.5


class Attempt:
    """From start to the last task's end. `run` it once."""

    def __init__(
        self,
        job: Job,
        number: int,
        spare: int,
        seats: Mapping[Place, Seat],
        watch: Watch,
        page: Page,
        peers: Peers,
        summary: str,
    ) -> None:
        self._job, self._number, self._seats = job, number, seats
        self._watch, self._page, self._peers, self._summary = watch, page, peers, summary
        self.spare = spare  # how many single workers may still be started again
        self.hidden = 0  # lines that were not shown, because all was over by then
        self.tasks: dict[Place, Task] = {}
        self._clusters: dict[Place, Cluster] = {}
        self._held = Held()
        self._failed: list[Ending] = []
        self._how: How | None = None  # set when all are being ended
        self._settle_until = self._kill_at = float("inf")

    def run(self) -> Result:
        """Start all, and wait for the end of all."""
        self._clusters = layout.clusters(self._job)
        orders = self._watch.orders
        try:
            for place in self._clusters:
                self._start(place)
            while any(task.runs for task in self.tasks.values()):
                self._watch.wait(_TICK)
                self._obey(orders)
                self._check_time()
        finally:
            self._clear()
        result = self._result()
        if result.how in (How.INTERRUPTED, How.DONE):
            for task in self.tasks.values():
                self._show_held(task)
        return result

    def said(self, name: str) -> list[str]:
        """What a task has said from its traceback on, and was not shown yet."""
        return self._held.given(name)

    def consequence(self, name: str) -> str:
        """What a task has failed of that is not to blame; nothing where it was ended."""
        return next((each.headline for each in self._failed if each.name == name), "")

    def _result(self) -> Result:
        if self._how in (How.INTERRUPTED, How.OUTSIDE):
            return Result(self._how)
        if self._failed:
            return Result(How.FAILED, first_real(self._failed))
        return Result(How.DONE)

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    def _start(self, place: Place) -> None:
        cluster = self._clusters[place]
        task = Task(
            place.name,
            cluster,
            command_of(self._job.script, self._job.arguments),
            layout.environment(self._job, cluster, self._number, self._summary),
            self._seats[place],
        )
        self.tasks[place] = task
        self._watch.add(task.pipe, lambda: self._read(task))
        self._watch.add(task.pidfd, lambda: self._ended(place, task))

    def _read(self, task: Task) -> None:
        for line in task.read():
            self._show(task, line)
        if task.at_eof:
            self._watch.remove(task.pipe)

    def _show(self, task: Task, line: str) -> None:
        """Once all is over, only those who failed and those who were interrupted are heard."""
        heard = self._how in (None, How.INTERRUPTED)
        if not heard and task.name not in {ending.name for ending in self._failed}:
            self.hidden += 1
        elif not self._held.takes(task.name, line, time.monotonic()):
            self._page.show(task.name, line)

    def _show_held(self, task: Task) -> None:
        for line in self._held.given(task.name):
            self._page.show(task.name, line)

    def _ended(self, place: Place, task: Task) -> None:
        self._watch.remove(task.pidfd)
        self._watch.remove(task.pipe)
        for line in task.at_end():
            self._show(task, line)
        if self._how is not None:
            return
        code = task.popen.returncode
        if code == 0:
            self._show_held(task)
            if self._job.servers and place.role == "chief":
                self._peers.tell(Result(How.DONE))
                self._end_all(How.DONE)
            return
        ending = task.ending()
        alone = self._job.servers and place.role == "worker" and not self._failed
        if alone and self.spare > 0 and not ending.is_certain:
            self.spare -= 1
            self._show_held(task)
            self._page.say(f"{task.name} failed: {ending.headline}; it is started again")
            task.close()
            self._start(place)
            return
        self._fail(ending)

    def _fail(self, ending: Ending) -> None:
        self._failed.append(ending)
        if ending.is_consequence:
            self._settle_until = min(self._settle_until, time.monotonic() + _SETTLE)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """The rest is ended, here and elsewhere."""
        if all(ending.is_consequence for ending in self._failed):
            running = [task for task in self.tasks.values() if task.runs]
            self._failed += [task.ending() for task in running if shows_failure(task.tail)]
        self._peers.tell(Result(How.FAILED, first_real(self._failed)))
        self._end_all(How.FAILED)

    def _obey(self, orders: int) -> None:
        asked = self._watch.orders - orders
        if asked and self._how is not How.INTERRUPTED:
            self._peers.tell(Result(How.INTERRUPTED))
            self._end_all(How.INTERRUPTED)
        if asked > 1:
            self._kill_at = 0.0
        if self._peers.stopped and self._how is None:
            self._end_all(How.OUTSIDE)

    def _check_time(self) -> None:
        now = time.monotonic()
        if now >= self._settle_until and self._how is None:
            self._give_up()
        if now >= self._kill_at:
            self._kill_at = float("inf")
            for task in self.tasks.values():
                task.kill()
        undecided = self._how is None and not self._failed
        due = self._held.due(now) if undecided else ()
        for task in self.tasks.values():
            if task.name in due:
                self._show_held(task)
            if undecided and (state := task.standing(now)):
                self._page.show(task.name, state)
            patience = self._job.patience
            if task.runs and self._how is None and patience and task.stopped_for() >= patience:
                task.reason = f"it stood stopped (SIGSTOP) for {patience:g} s"
                task.kill()
        _collect_adopted({task.popen.pid for task in self.tasks.values()})

    def _end_all(self, how: How) -> None:
        self._how = how
        self._settle_until = float("inf")
        # TensorFlow's workers catch SIGTERM, and do nothing with it that helps here.
        grace = self._job.grace if how is How.INTERRUPTED else min(self._job.grace, _QUICK)
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        for task in self.tasks.values():
            task.signal(signal.SIGTERM)
            task.signal(signal.SIGCONT)  # a stopped one could not end

    def _clear(self) -> None:
        """Whatever is left: tasks, if this was cut short, and what ended tasks have left behind."""
        launch.kill_descendants(os.getpid())
        for task in self.tasks.values():
            self._watch.remove(task.pidfd)
            self._watch.remove(task.pipe)
            task.popen.wait()
            task.close()
        while launch.children(os.getpid()):
            launch.kill_descendants(os.getpid())
            os.waitpid(-1, 0)


def _collect_adopted(known: set[int]) -> None:
    """What tasks have left behind goes on; what of it has ended is not kept as a zombie."""
    for pid in launch.children(os.getpid()):
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
