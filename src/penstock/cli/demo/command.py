"""The command: looks for what is needed, runs the comparison, prints what came out."""

from __future__ import annotations

import dataclasses
import importlib.util

import click

from penstock.cli.command import Command, json_option, print_json, terminating_as_interrupt
from penstock.errors import ConfigError, PenstockError

_NEEDED = {"tensorflow": "TensorFlow", "keras": "Keras", "sklearn": "scikit-learn"}


@click.command(cls=Command, short_help="See what sharing a model changes, on this machine.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=5.0,
    show_default=True,
    help="How long each way is measured.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="How many processes ask.",
)
@json_option("what was measured")
def demo(seconds: float, processes: int, as_json: bool) -> None:
    """Eight processes ask one small network, trained here: with model.predict and a copy each, with
    a compiled copy each, and through Penstock.

    Measures the three ways on this machine's CPUs, in one to three minutes, and prints what it
    found.
    """
    _look_for_packages()
    from penstock.cli.demo.comparison import compare
    from penstock.cli.demo.progress import shown_progress

    with terminating_as_interrupt(), shown_progress() as progress:
        comparison = compare(processes, seconds, progress)
    if as_json:
        print_json(dataclasses.asdict(comparison))
    else:
        from rich.console import Console

        from penstock.cli.demo.show import show

        show(comparison, Console())
    if not comparison.agree:
        raise PenstockError("the answers of a way differ from the network's by more than rounding")


def _look_for_packages() -> None:
    missing = [name for module, name in _NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        raise ConfigError(
            f"the demo trains and runs a network, and needs {' and '.join(missing)} for that: "
            "pip install 'penstock[cpu,demo]'"
        )
