"""A rehearsal: the whole of a program that is meant for a GPU, small, on the CPU.

It shows that every step runs. Its figures mean nothing, which it says, and it keeps them away from
those that do.
"""

import argparse
from pathlib import Path

from benchmarks.core.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results"
SAID = "A REHEARSAL on the CPU: it shows that this runs; no figure is worth keeping."


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="go through all of it without a GPU: a small network, few rows; --out elsewhere",
    )


def keep_apart(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse a rehearsal that would write where results are kept."""
    out: Path = arguments.out
    if arguments.rehearse and out.resolve().is_relative_to(RESULTS):
        parser.error(f"a rehearsal writes nothing into {RESULTS}: say --out DIR")
