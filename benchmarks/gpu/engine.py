"""The process that owns an engine: starts it, tells its statistics, ends it with its own input.

    python -m benchmarks.gpu.engine NAME FOLDER FILE SETTINGS

SETTINGS are those of `penstock.Engine`, as JSON. Out, once it is ready: how long that took and the
statistics; or {"refused": the error's name, "text": its text}, and that was all. In, any number of
times: {"rows": n}, to answer so many images and check them; or {}. Out: the statistics, or
{"failed": the error's name, "text": its text}.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import penstock
from benchmarks.core.client import say
from benchmarks.gpu.images import Pictures


def told(name: str, error: Exception) -> dict[str, Any]:
    return {name: type(error).__name__, "text": str(error)}


def answer(engine: penstock.Engine, pictures: Pictures, rows: int) -> None:
    """So many images in one call, and one alone."""
    array, right = pictures.repeated(rows)
    answers = engine.predict(array)
    for start in range(0, rows, len(right)):
        some = answers[start : start + len(right)]
        pictures.check_batch(some, right[: len(some)])
    pictures.check_batch(engine.predict(array[:1]), right[:1])


def main() -> None:
    name, folder, file, settings = sys.argv[1:]
    pictures = Pictures(Path(folder), number=1 << 20)
    began = time.monotonic()
    engine = penstock.Engine(Path(folder, file), name=name, **json.loads(settings))
    try:
        engine.start()
    except penstock.errors.PenstockError as error:
        say(told("refused", error))
        return
    with_statistics = {"ready_s": round(time.monotonic() - began, 2)}
    try:
        while not all(worker.warm for worker in engine.statistics().workers):
            time.sleep(0.2)
        with_statistics["warm_s"] = round(time.monotonic() - began, 2)
        say(with_statistics | asdict(engine.statistics()))
        for line in sys.stdin:
            order = json.loads(line)
            try:
                if order:
                    answer(engine, pictures, order["rows"])
                say(asdict(engine.statistics()))
            except Exception as error:
                say(told("failed", error))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
