"""One process of the demo's crowd: `python -m penstock.cli.demo.asker`, started by `crowd`.

Gets ready (loads a network of its own, or connects to the engine that has it) until it has a first
answer, says so, is told when to begin and to end, asks for one image after the other until then,
and says what it measured. It has one request outstanding at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.cli.demo.child import Parent, leave

Array = np.ndarray[Any, Any]
Ask = Callable[[Array], Array]
_WAIT = 600.0


class Asked(NamedTuple):
    """Every request: when it was made, when it was answered, which image, what came back."""

    begins: list[float]
    ends: list[float]
    images: list[int]
    answers: list[Array]


def main() -> None:
    """Its whole life."""
    parent = Parent()
    settings = parent.settings
    with np.load(settings["digits"]) as digits:
        images, expected = digits["images"], digits["answers"]
    first: int = settings["first"]
    ask = _way_to_ask(settings["way"], settings["place"])
    ask(images[first : first + 1])
    parent.say({"ready": time.monotonic()})
    window = parent.hear()
    asked = _ask_until(ask, images, first, window["end"])
    parent.say(_measured(asked, expected, window["begin"], window["end"]))
    parent.hear()  # stay until all are done and were looked at: the end of the talk ends this
    leave()


def _way_to_ask(way: str, place: str) -> Ask:
    if way == "penstock":
        import penstock

        client = penstock.connect(place, wait=_WAIT)
        return client.predict
    from penstock.cli.demo import copies

    return copies.Predict(place) if way == "predict" else copies.Compiled(place)


def _ask_until(ask: Ask, images: Array, first: int, end: float) -> Asked:
    asked = Asked([], [], [], [])
    image = first
    now = time.monotonic()
    while now < end:
        image = (image + 1) % len(images)
        asked.begins.append(now)
        asked.answers.append(ask(images[image : image + 1]))
        now = time.monotonic()
        asked.ends.append(now)
        asked.images.append(image)
    return asked


def _measured(asked: Asked, expected: Array, begin: float, end: float) -> dict[str, Any]:
    """Latencies of what was answered in the window; of all answers, how they compare."""
    latencies = [
        after - before
        for before, after in zip(asked.begins, asked.ends, strict=True)
        if begin <= after <= end
    ]
    answers = np.concatenate(asked.answers) if asked.answers else expected[:0]
    wanted = expected[asked.images]
    same = answers.argmax(axis=1) == wanted.argmax(axis=1)
    return {
        "latencies": latencies,
        "compared": len(answers),
        "same_class": int(same.sum()),
        "largest_difference": float(np.abs(answers - wanted).max(initial=0.0)),
    }


if __name__ == "__main__":
    main()
