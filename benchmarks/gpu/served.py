"""Penstock's own processes from outside: their start, or why there was none; what they did."""

import json
import os
import time
from itertools import count
from typing import Any

from benchmarks.core.processes import Child, ChildFailed
from benchmarks.gpu.place import Place
from benchmarks.models import served
from benchmarks.models.images import NETWORK

_READY_WITHIN = 400.0
_ANSWERS_WITHIN = 120.0
_serial = count()


class Refused(ChildFailed):
    """The engine did not start, and said why."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class ServedNetwork(served.EngineProcess):
    """An engine with an owner's process, started now, with these settings."""

    def __init__(
        self,
        place: Place,
        settings: dict[str, Any],
        file: str = NETWORK,
        within: float = _READY_WITHIN,
    ) -> None:
        self.endpoint = f"bench-gpu-{os.getpid()}-{next(_serial)}"
        command = ["benchmarks.gpu.engine", self.endpoint, str(place.files), file]
        self._child = Child([*command, json.dumps(settings)], place)
        try:
            told = self._child.hear(time.monotonic() + within)
        except BaseException:
            self.close()
            raise
        if "refused" in told:
            self.close()
            raise Refused(told["refused"], told["text"])
        self.ready_s: float = told["ready_s"]
        self.warm_s: float = told["warm_s"]
        self.facts = told["models"][0]["facts"]

    def answer(self, rows: int) -> None:
        """Have the owner ask for so many images; ChildFailed where one is not answered rightly."""
        self._child.say({"rows": rows})
        told = self._child.hear(time.monotonic() + _ANSWERS_WITHIN)
        if "failed" in told:
            raise Refused(told["failed"], told["text"])

    def summary(self) -> dict[str, Any]:
        """How it runs the network."""
        return {"ready_s": self.ready_s, "warm_s": self.warm_s, "facts": self.facts}
