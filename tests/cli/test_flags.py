"""Options that are read off a settings dataclass."""

from __future__ import annotations

from typing import Any

import click
from click.testing import CliRunner

from penstock.cli.flags import settings_flags
from penstock.config import Model

seen: dict[str, Any] = {}


@click.command()
@settings_flags(Model, leave_out={"source", "name"})
def command(**settings: Any) -> None:
    seen.clear()
    seen.update(settings)


def test_numbers_are_written_with_commas() -> None:
    run = CliRunner().invoke
    assert run(command, ["--ladder", "1,8, 32", "--compile", "frozen"]).exit_code == 0
    assert seen["ladder"] == (1, 8, 32)
    assert Model("a:b", ladder=seen["ladder"], compile=seen["compile"]).ladder == (1, 8, 32)
    assert run(command, []).exit_code == 0
    assert Model("a:b", **{name: seen[name] for name in ("ladder", "tolerance", "sample")})
    refused = run(command, ["--ladder", "1,many"])
    assert refused.exit_code == 2
    assert "expected whole numbers, for example 1,8,32" in refused.output
