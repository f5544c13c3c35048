"""The client process: connect, say so, wait for the schedule, run the load, report, stay.

    python -m benchmarks.core.client (penstock | http | nothing) ENDPOINT NUMBER OUTSTANDING

It speaks JSON lines. Out: {"ready": true}. In: a schedule. Out: {"results": [report]}. Another
schedule may follow; the end of its input is the order to leave. It stays connected until then.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.core.stopwatch import Recorder, Schedule
from benchmarks.core.workload import Rows


class Exchange(Protocol):
    """A connected client of one system."""

    def run(self, rows: Rows, recorder: Recorder) -> None:
        """Keep the agreed number of requests outstanding until the recorder says it is over."""

    def close(self) -> None: ...


def connect(kind: str, endpoint: str, number: int, outstanding: int) -> Exchange:
    """Connect; each kind is imported only where it is used, to keep the others light."""
    if kind == "penstock":
        from benchmarks.core.penstock_exchange import PenstockExchange

        return PenstockExchange(endpoint, outstanding)
    if kind == "http":
        from benchmarks.core.http_exchange import HttpExchange

        return HttpExchange(endpoint, outstanding)
    if kind == "nothing":
        from benchmarks.core.ring_exchange import RingExchange

        return RingExchange(endpoint, number, outstanding)
    raise ValueError(f"no such kind of client: {kind}")


def say(message: dict[str, Any]) -> None:
    """Write one line of the dialogue with the process that started this one."""
    print(json.dumps(message), flush=True)


def measure(exchange: Exchange, rows: Rows, schedule: Schedule) -> dict[str, Any]:
    """Run one load as scheduled."""
    recorder = Recorder(schedule)
    schedule.wait_for_start()
    exchange.run(rows, recorder)
    return recorder.report()


def serve_schedules(run: Callable[[Schedule], list[dict[str, Any]]]) -> None:
    """Say that all is ready, then run every schedule that comes until the input ends."""
    say({"ready": True})
    for line in sys.stdin:
        say({"results": run(Schedule(**json.loads(line)))})


def main() -> None:
    kind, endpoint, number, outstanding = sys.argv[1:]
    rows = Rows(int(number), int(outstanding))
    exchange = connect(kind, endpoint, int(number), int(outstanding))
    serve_schedules(lambda schedule: [measure(exchange, rows, schedule)])
    exchange.close()


if __name__ == "__main__":
    main()
