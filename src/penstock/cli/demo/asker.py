"""One process of the demo's crowd: `python -m penstock.cli.demo.asker`, started by `crowd`.

Reads its settings from stdin, gets ready (loads the network, or connects to the engine that has
it), says so, waits for the word, asks for one image after the other until the time is up, and
writes what it measured. One line of JSON each way.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.cli.demo.network import Array, Network, images

_KEPT = 64


def main() -> None:
    """Its whole life."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    ask = _way_to_ask(settings["engine"])
    mine = images(settings["seed"], _KEPT)
    ask(mine[:1])
    print(json.dumps("ready"), flush=True)
    if not sys.stdin.readline():
        return  # whoever started this has gone
    latencies, answers = _ask_until(ask, mine, settings["seconds"])
    print(json.dumps({"latencies": latencies, "answers": answers}), flush=True)
    sys.stdin.readline()  # stay until all are done, so that nobody gets a core for itself


def _way_to_ask(engine: str) -> Callable[[Array], Array]:
    if not engine:
        return Network()
    import penstock

    client = penstock.connect(engine, wait=60)
    return client.predict


def _ask_until(
    ask: Callable[[Array], Array], mine: Array, seconds: float
) -> tuple[list[float], list[list[float]]]:
    latencies: list[float] = []
    answers: list[list[float]] = []
    now = time.perf_counter()
    until = now + seconds
    asked = 0
    while now < until or asked < len(mine):
        image = asked % len(mine)
        answer = ask(mine[image : image + 1])
        before, now = now, time.perf_counter()
        if now < until:
            latencies.append(now - before)
        if asked < len(mine):
            answers.append(answer[0].tolist())
        asked += 1
    return latencies, answers


if __name__ == "__main__":
    main()
