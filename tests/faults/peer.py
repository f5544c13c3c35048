"""What the other processes of these tests do: `python -m tests.faults.peer ROLE ARGUMENTS`.

Each role tells what it does in lines of JSON and goes on when it is told a word. They end at the
end of their input, unless they are killed before, which is what most of them are for.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Engine, EngineConfig, Model, connect
from penstock.config import models_of
from penstock.engine.owner import start_engine
from penstock.errors import PenstockError, RowsFailed
from penstock.transport import rendezvous
from tests.faults.models import Verb, answer_to, row, rows


def tell(value: Any) -> None:
    """Tell the test something."""
    print(json.dumps(value), flush=True)


def hear() -> str:
    """Wait for a word; the end of the input ends the process."""
    word = sys.stdin.readline().strip()
    if not word:
        os._exit(0)
    return word


def hold(address: str, *numbers: str) -> None:
    """Submit one waiting row for each number; then do as told: close, results, exit."""
    client = connect(address)
    futures = [client.submit(row(Verb.WAIT, int(n), int(n))[None]) for n in numbers]
    tell("submitted")
    while True:
        word = hear()
        if word == "close":
            client.close()
        if word in ("close", "results"):
            tell([_outcome(future) for future in futures])
        if word == "exit":
            sys.exit(0)


def _outcome(future: Any) -> Any:
    try:
        return future.result(20)[:, 0].tolist()
    except PenstockError as error:
        return type(error).__name__


def ask(address: str) -> None:
    """Ask without pause until told a word; then tell how often, and what went wrong."""
    ends = threading.Event()
    threading.Thread(target=lambda: (hear(), ends.set()), daemon=True).start()
    counts: Counter[str] = Counter()
    number = 0
    with connect(address, wait=20) as client:
        while not ends.is_set():
            number += 1
            x = rows(row(Verb.ANSWER, 0, number, 64), row(Verb.ANSWER, 0, -number, 64))
            try:
                wrong = (client.predict(x)[:, 0] != answer_to(x)).any()
                counts["wrong" if wrong else "right"] += 1
            except PenstockError as error:
                counts[type(error).__name__] += 1
            if number == 1:
                tell("asking")
    tell(counts)


def many(address: str, model: str, count: str, descriptors: str = "") -> None:
    """Submit so many rows one by one, and tell at a word what became of them.

    With a limit of descriptors: as one call, of a process that may not open more.
    """
    client = connect(address)
    numbers = np.arange(int(count))[:, None]
    if descriptors:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), hard))
        futures = [client.submit(numbers, model=model)]
    else:
        futures = [client.submit(number[None], model=model) for number in numbers]
    tell("submitted")
    hear()
    counts: Counter[str] = Counter()
    for number, future in enumerate(futures):
        try:
            counts["right" if (future.result(20) == number).all() else "WRONG"] += 1
        except RowsFailed as error:
            counts[f"{len(error.errors)} rows failed"] += 1
            right = [(error.results[n] == n).all() for n in numbers[:, 0] if n not in error.errors]
            counts[f"{sum(right)} of {len(right)} rows right"] += 1
        except PenstockError as error:
            counts[type(error).__name__] += 1
    tell(counts)
    hear()


def kill_rows(address: str, killers: str, innocents: str) -> None:
    """Ask for rows of which some kill their worker; tells what became of each kind."""
    with connect(address) as client:
        verbs = [Verb.KILL] * int(killers) + [Verb.ANSWER] * int(innocents)
        asked = [(verb, row(verb, 0, number)[None]) for number, verb in enumerate(verbs)]
        tell("ready")
        hear()
        futures = [client.submit(x) for _, x in asked]
        counts: Counter[str] = Counter()
        for (verb, x), future in zip(asked, futures, strict=True):
            try:
                right = (future.result(50)[:, 0] == answer_to(x)).all()
                outcome = "right" if right else "wrong"
            except PenstockError as error:
                outcome = type(error).__name__
            counts[f"{verb.name}: {outcome}"] += 1
        tell(counts)
        hear()


def fork(address: str) -> None:
    """Fork while a call is open: both sides must get their own answers."""
    client = connect(address)
    future = client.submit(row(Verb.WAIT, 1, 1)[None])
    tell("submitted")
    hear()
    x = row(Verb.ANSWER, 0, 5)[None]
    child = os.fork()
    if child == 0:
        try:
            future.result(1)
            inherited = "an answer"
        except PenstockError as error:
            inherited = type(error).__name__
        tell(["child", inherited, _cancel_among_files(future)])
        tell(["child", client.predict(x)[:, 0].tolist() == answer_to(x).tolist()])
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    tell(["parent", client.predict(x)[:, 0].tolist() == answer_to(x).tolist()])
    hear()
    tell(future.result(20)[:, 0].tolist())
    client.close()
    hear()


def _cancel_among_files(future: Any) -> str:
    """Cancel a parent's call in the child, where its descriptors' numbers mean other files."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(32)]
        future.cancel()
        touched = [file.fileno() for file in files if os.fstat(file.fileno()).st_size]
    return f"it wrote to {touched}" if touched else "its files are untouched"


def bare_fork(address: str, number: str) -> None:
    """Fork behind Python's back: the child keeps the socket open and never runs a hook."""
    client = connect(address)
    client.submit(row(Verb.WAIT, int(number))[None])
    libc = ctypes.PyDLL(None)
    child = libc.fork()
    if child == 0:
        while True:
            libc.pause()
    tell(child)
    while hear() == "close":
        client.close()
        tell("closed")


def vanish(address: str, delay: str) -> None:
    """Submit rows and die without a word, with answers on their way."""
    client = connect(address)
    for number in range(64):
        client.submit(row(Verb.SLEEP, int(delay), number, 64)[None])
    os._exit(0)


def crowd(address: str, number: str) -> None:
    """Connect so often, and say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(int(number)):
            stack.enter_context(rendezvous.dial(Path(address)))
        tell("connected")
        hear()


def own(folder: str, source: str, workers: str, max_batch: str = "0") -> None:
    """Start an engine that belongs to this process; tells where it is."""
    model = Model(source, max_batch=int(max_batch))
    engine = Engine(model, folder=folder, workers=int(workers)).start()
    workers_now = [worker.pid for worker in engine.statistics().workers]
    tell([str(engine.address), engine.statistics().pid, workers_now])
    if hear() == "leave":
        sys.exit(0)  # without closing anything


def own_in_vain(folder: str, source: str, files: str) -> None:
    """Try the same, while no process may open so many files; tells the error."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    try:
        Engine(source, folder=folder).start()
    except PenstockError as error:
        tell([type(error).__name__, str(error)])


def own_with_few(folder: str, source: str, descriptors: str, max_batch: str = "64") -> None:
    """The same in a process that, as its children, may have only so many files open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    own(folder, source, "1", max_batch)


def up(folder: str, source: str, name: str) -> None:
    """Start an engine that belongs to nobody; tells its pid."""
    process = start_engine(models_of(source), EngineConfig(name=name, folder=folder), owner=None)
    tell(process.pid)
    hear()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    {
        "hold": hold,
        "ask": ask,
        "many": many,
        "kill_rows": kill_rows,
        "fork": fork,
        "bare_fork": bare_fork,
        "vanish": vanish,
        "own": own,
        "own_in_vain": own_in_vain,
        "crowd": crowd,
        "own_with_few": own_with_few,
        "up": up,
    }[role](*arguments)
