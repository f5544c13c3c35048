"""The command: python -m benchmarks.visit --out DIR [--work DIR] [--seconds N] [--only PART,...].

Runs, in their order, the parts that are not over yet and for which enough time is left; with
--only, those parts, whether they are over or not. Ends with 1 where one of them failed or was cut
off. The table is the last that it prints.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.core import rehearsal
from benchmarks.visit.diary import Diary
from benchmarks.visit.parts import Part, parts
from benchmarks.visit.running import GRACE, LATE, run

_WIDTH = 150
_WORK = "/tmp/penstock-visit"


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    everything = parts(arguments.out.resolve(), arguments.work.resolve(), arguments.rehearse)
    return visit(everything, arguments.only, arguments.seconds, arguments.out)


def visit(everything: list[Part], only: list[str], seconds: float, out: Path) -> int:
    """Run what there is time for."""
    until = time.monotonic() + seconds
    diary = Diary(out)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    bad, left = [], []
    try:
        for part in everything:
            if part.name not in only if only else diary.is_over(part):
                continue
            room = until - time.monotonic() - GRACE - LATE
            if room < part.expected:
                left.append(part.name)
                continue
            console.rule(f"{part.name}: at most {min(part.limit, room):.0f} s")
            began, outcome, status = time.monotonic(), "cut off", -1
            try:
                outcome, status = run(part, min(part.limit, room), diary.log_of(part))
            finally:
                diary.enter(part, outcome, status, time.monotonic() - began)
            if outcome != "done":
                bad.append(part.name)
            if part.name == "look" and outcome != "done" and not only:
                console.print("Nothing else is begun: it would fail too.")
                break
    finally:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(diary.table(everything))
        if left:
            console.print(f"Left for the next command: {', '.join(left)}")
    return 1 if bad else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.visit", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for results and logs")
    parser.add_argument(
        "--work",
        type=Path,
        help=f"folder for the network, data and caches (default: {_WORK})",
    )
    parser.add_argument(
        "--seconds", type=float, default=1700.0, help="for this command (default: 1700)"
    )
    known = [part.name for part in parts(Path(), Path(), False)]
    parser.add_argument("--only", default="", help=", ".join(known))
    rehearsal.add_flag(parser)
    arguments = parser.parse_args()
    rehearsal.keep_apart(parser, arguments)
    if arguments.work is None:  # a visit begins with nothing cached, also after a rehearsal
        arguments.work = Path(f"{_WORK}-rehearsal" if arguments.rehearse else _WORK)
    arguments.only = [name for name in arguments.only.split(",") if name]
    for name in arguments.only:
        if name not in known:
            parser.error(f"no part {name!r}; there are {', '.join(known)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
