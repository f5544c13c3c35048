"""The command line itself: help, version, flags; that it starts fast."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli.command import Command
from penstock.cli.flags import Bytes, bytes_text, settings_flags, settings_of
from penstock.cli.group import penstock as group
from penstock.cli.up import up
from penstock.config import EngineConfig, Model
from penstock.errors import ConfigError, ModelError, RemoteTraceback


def flags_of(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


def test_version(shop):
    done = shop.run("--version")
    assert done.returncode == 0
    assert done.stdout == f"penstock, version {penstock.__version__}\n"


def test_help_lists_the_commands(shop):
    done = shop.run("--help")
    assert done.returncode == 0
    for name in group.list_commands(click.Context(group)):
        assert f"\n  {name} " in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_an_unknown_command_is_a_usage_error(shop):
    done = shop.run("sideways")
    assert done.returncode == 2
    assert "No such command 'sideways'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["up", "--help"],
        ["down", "nobody"],
        ["ps"],
        ["top", "nobody"],
        ["trace", "nobody"],
        ["run", "--gpu-memory", "1M", "true"],
        ["doctor"],
        ["--version"],
    ],
)
def test_starts_without_numpy(shop, arguments):
    probe = (
        "import sys, penstock.cli\n"
        f"sys.argv = ['penstock', *{arguments!r}]\n"
        "try:\n    penstock.cli.main()\n"
        "finally:\n    print('heavy:', {'numpy', 'rich', 'tensorflow'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env=shop.environment,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.stdout.splitlines()[-1] == "heavy: set()"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineConfig)])
def test_every_field_of_the_engine_config_is_a_flag(name):
    assert "--" + name.replace("_", "-") in flags_of(up)


@pytest.mark.parametrize("name", ["max_batch", "batched"])
def test_fields_of_a_model_are_flags(name):
    assert "--" + name.replace("_", "-") in flags_of(up)


def test_flags_have_the_fields_defaults_and_help():
    parameters = {parameter.name: parameter for parameter in up.params}
    for kind in (EngineConfig, Model):
        for field in dataclasses.fields(kind):
            if "help" in field.metadata:
                parameter = parameters[field.name]
                assert parameter.default == field.default
                assert field.metadata["help"][1:] in parameter.help


def test_a_new_field_becomes_a_flag_by_itself():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        depth: int = dataclasses.field(default=3, metadata={"help": "how deep"})
        cache_bytes: int = 1 << 20
        name: str | None = None
        loud: bool = False
        hidden: object = None

    @click.command(cls=Command)
    @settings_flags(Settings)
    def show(**values):
        click.echo(repr(Settings(**settings_of(Settings, {**values, "other": 1}))))

    assert flags_of(show) >= {"--depth", "--cache-bytes", "--name", "--loud"}
    assert "--hidden" not in flags_of(show)
    arguments = ["--depth", "7", "--cache-bytes", "4G", "--loud", "--name", "x"]
    done = CliRunner().invoke(show, arguments)
    assert "depth=7, cache_bytes=4294967296, name='x', loud=True" in done.output
    assert "name=None" in CliRunner().invoke(show).output
    shown = CliRunner().invoke(show, ["--help"]).output
    assert "How deep." in shown
    assert "[default: 1M]" in shown


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1536, "1536"), (1 << 30, "1G"), (3 << 20, "3M"), (1 << 50, "1024T")],
)
def test_sizes_read_as_they_are_written(size, text):
    assert bytes_text(size) == text
    assert Bytes().convert(text, None, None) == size


def failing(error: BaseException) -> click.Command:
    @click.command(cls=Command)
    def fail():
        raise error

    return fail


def test_errors_are_one_line():
    done = CliRunner().invoke(failing(ConfigError("two\nlines")))
    assert done.exit_code == 1
    assert done.stderr == "penstock: error: two lines\n"


def test_remote_tracebacks_are_shown_when_asked_for():
    error = ModelError("no")
    error.__cause__ = RemoteTraceback("Traceback: there")
    done = CliRunner().invoke(failing(error))
    assert "Traceback" not in done.stderr
    assert "--verbose" in done.stderr
    assert "Traceback: there" in CliRunner().invoke(failing(error), ["--verbose"]).stderr


def test_an_interrupt_has_its_own_exit_code():
    done = CliRunner().invoke(failing(KeyboardInterrupt()))
    assert done.exit_code == 130


def test_commands_are_found_by_name_only():
    context = click.Context(group)
    assert group.get_command(context, "nothing") is None
    assert {group.get_command(context, name).name for name in group.list_commands(context)} == {
        "demo",
        "up",
        "down",
        "ps",
        "top",
        "trace",
        "predict",
        "merge",
        "run",
        "train",
        "tune",
        "doctor",
    }
