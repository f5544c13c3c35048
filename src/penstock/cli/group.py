"""`penstock` itself: finds a command by its name and imports it then, so that each starts fast."""

from __future__ import annotations

import importlib

import click

import penstock as package

_HOMES = {
    "demo": "penstock.cli.demo.command",
    "up": "penstock.cli.up",
    "down": "penstock.cli.down",
    "ps": "penstock.cli.ps",
    "top": "penstock.cli.top.command",
    "trace": "penstock.cli.trace",
    "predict": "penstock.cli.predict",
    "merge": "penstock.cli.merge",
    "run": "penstock.cli.run",
    "tune": "penstock.cli.tune",
    "train": "penstock.cli.train",
    "doctor": "penstock.cli.doctor.command",
}


class Commands(click.Group):
    """The commands, in the order in which people meet them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        return list(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in _HOMES:
            return None
        command = getattr(importlib.import_module(_HOMES[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, prog_name="penstock")
def penstock() -> None:
    """Many processes, few GPUs: share models at the speed of the device."""
