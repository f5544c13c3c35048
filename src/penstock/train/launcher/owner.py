"""The command's side: it starts the supervisor, passes signals on, and outlives it.

In a terminal, Ctrl-C reaches this process alone: the supervisor has a session of its own. The first
signal asks all tasks to end, the second kills them, the third kills the supervisor, too. What was
ignored when the command began is not waited for: `nohup` and a shell's background stand.
"""

from __future__ import annotations

import os
import signal
import subprocess

from penstock import launch
from penstock.errors import WorkerLost
from penstock.train.launcher.job import Job

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(job: Job) -> int:
    """Run the job to its end; returns the exit code. Nothing is left behind."""
    launch.adopt_orphans()
    # A signal that is ignored and blocked is kept: whoever waits for it gets it all the same.
    waited = {*launch.heeded(_ENDING), signal.SIGCHLD}
    owner = os.pidfd_open(os.getpid())
    try:
        supervisor = launch.start(
            "penstock.train.launcher", job.to_json(), {"owner": owner}, detached=True
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        try:
            _wait(supervisor, waited)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        os.close(owner)
        _clear()
    if supervisor.returncode < 0:
        raise WorkerLost(
            f"the launcher's supervisor died ({launch.exit_text(supervisor.returncode)}); "
            "every process of the job was ended"
        )
    return supervisor.returncode


def _wait(supervisor: subprocess.Popen[bytes], signals: set[signal.Signals]) -> None:
    told = 0
    while supervisor.poll() is None:
        number = signal.sigwait(signals)
        if number in _ENDING:
            told += 1
            supervisor.send_signal(signal.SIGTERM if told < 3 else signal.SIGKILL)


def _clear() -> None:
    """What a supervisor that was killed has left."""
    while launch.children(os.getpid()):
        launch.kill_descendants(os.getpid())
        os.waitpid(-1, 0)
