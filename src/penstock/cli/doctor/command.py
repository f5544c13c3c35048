"""The command: asks everybody, prints a line for each finding, and one for what to do."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator

import click

from penstock.cli.command import Command, folder_option, json_option, print_json, spinner
from penstock.cli.doctor.finding import Finding, Status

_COLOURS = {Status.OK: "green", Status.NOTE: "yellow", Status.PROBLEM: "red"}
_NAME = 17


@click.command(cls=Command, short_help="Check this machine: what is there, what is missing.")
@click.option("--deep", is_flag=True, help="Also import TensorFlow and run a tiny model (seconds).")
@folder_option()
@json_option("the findings")
def doctor(deep: bool, folder: str, as_json: bool) -> None:
    """Check this machine: what Penstock needs, what models need, what runs.

    Each line is ok, a note or a problem, with what to do. Exits with 1 when there is a problem.
    """
    found: list[Finding] = []
    for finding in _all(deep, folder, as_json):
        found.append(finding)
        if not as_json:
            _print(finding)
    problems = sum(finding.status is Status.PROBLEM for finding in found)
    notes = sum(finding.status is Status.NOTE for finding in found)
    if as_json:
        print_json(
            {
                "problems": problems,
                "notes": notes,
                "findings": [
                    {**dataclasses.asdict(finding), "status": finding.status.value}
                    for finding in found
                ],
            }
        )
    else:
        click.echo(f"\n{_count(problems, 'problem')}, {_count(notes, 'note')}")
    if problems:
        click.get_current_context().exit(1)


def _all(deep: bool, folder: str, as_json: bool) -> Iterator[Finding]:
    from penstock.cli.doctor import deep as tensorflow
    from penstock.cli.doctor import gpus, machine, packages, places

    yield from machine.findings()
    yield from places.findings(folder)
    cards = gpus.cards()
    yield from gpus.findings(cards)
    yield from gpus.sharing(cards)
    yield from packages.findings(len(cards.cards))
    if deep and importlib.util.find_spec("tensorflow"):
        with spinner("TensorFlow is imported", not as_json):
            told = list(tensorflow.findings(len(cards.cards)))
        yield from told


def _print(finding: Finding) -> None:
    status = click.style(f"{finding.status.value:<8}", fg=_COLOURS[finding.status])
    click.echo(f"{status} {finding.name:<{_NAME}} {finding.text}")
    if finding.advice:
        click.echo(f"{'':<8} {'':<{_NAME}} → {finding.advice}")


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
