"""A loader: a process that decodes parts, predicts them as a client of the engine, and writes them.

Started by `loaders` as `python -m penstock.offline.loader`. Orders and news are JSON lines on
pipes. It ends with its job: when orders end, or when the job's process does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from penstock import launch
from penstock.client.client import connect
from penstock.data import open_sink, reopen
from penstock.errors import InputError, PenstockError, kind_of
from penstock.offline.cut import Cut
from penstock.offline.feed import Feed
from penstock.offline.labour import Broken, Event, Labour, Reading
from penstock.offline.parts import PartStore
from penstock.offline.selection import load
from penstock.offline.stages import Stages
from penstock.offline.window import Shaping, Window

_EVERY = 0.5  # seconds between news of where the time goes


class News:
    """What the job is told, by any thread."""

    def __init__(self, file: IO[str], stages: Stages) -> None:
        self._file, self._stages = file, stages
        self._lock = threading.Lock()

    def tell(self, **what: Any) -> None:
        """One line."""
        told = {"stages": self._stages.snapshot(), "answered": self._stages.answered}
        line = json.dumps({**what, **told}) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def event(self, event: Event) -> None:
        """A part is written, nothing goes any more, or a row is about to be read alone."""
        if isinstance(event, Broken):
            self.tell(**told(event.error))
        elif isinstance(event, Reading):
            self.tell(reading=[event.part, event.row])
        else:
            self.tell(finished=event.part, rows=event.rows, facts=event.facts)


def told(error: BaseException) -> dict[str, Any]:
    """An error as it travels."""
    if isinstance(error, OSError):
        text = error.strerror or str(error)
        return {"errno": error.errno or 0, "error": text, "path": error.filename or ""}
    if isinstance(error, PenstockError):
        return {"kind": int(kind_of(error)), "error": str(error)}
    return {"kind": 0, "error": f"{type(error).__name__}: {error}"}


def main(arguments: list[str]) -> None:
    """Work until orders end."""
    text, descriptors = launch.read_settings(arguments)
    settings = json.loads(text)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _follow(descriptors["owner"])
    sys.path[:0] = [place for place in settings["sys_path"] if place not in sys.path]
    stages = Stages()
    news = News(os.fdopen(descriptors["news"], "w"), stages)
    try:
        labour = _labour(settings, stages, news)
    except BaseException as error:
        news.tell(**told(error))
        return
    labour.start()
    threading.Thread(target=_beat, args=(news,), daemon=True).start()
    with os.fdopen(descriptors["orders"]) as orders:
        for line in orders:
            order = json.loads(line)
            labour.assign(order["part"], None if order["care"] is None else dict(order["care"]))
    labour.assign(None)
    labour.join()


def _labour(settings: dict[str, Any], stages: Stages, news: News) -> Labour:
    client = connect(settings["address"], label="penstock loader")
    feed = Feed(
        tuple((name, dtype) for name, dtype in settings["feed"]["columns"]),
        settings["feed"]["bare"],
        tuple(settings["feed"]["keep"]),
    )
    shaping = Shaping(tuple(settings["shaping"]["outputs"]), settings["shaping"]["map"])
    window = Window(
        client,
        settings["model"],
        feed,
        shaping,
        stages,
        size=settings["window"],
        rows=settings["fill"],
    )
    source = reopen(settings["source"])
    if source.fingerprint() != settings["fingerprint"]:
        raise InputError("the source has changed since the job was started")
    store = settings["store"]
    sink = open_sink(store["sink"], **store["options"])
    return Labour(
        source,
        load(settings["selection"]),
        Cut(**settings["cut"]),
        feed,
        window,
        PartStore(Path(store["folder"]), sink, store["numbered"]),
        stages,
        news.event,
    )


def _beat(news: News) -> None:
    while True:
        time.sleep(_EVERY)
        news.tell()


def _follow(owner: int) -> None:
    """End as soon as the job has."""

    def watch() -> None:
        poll = select.poll()
        poll.register(owner, select.POLLIN)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="penstock-life", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv)
