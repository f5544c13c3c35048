"""Options that are read off the fields of a settings dataclass: a new field is a new flag.

The field's name, type and default become the option's, `metadata["help"]` its help. Sizes in bytes
(fields named `…_memory` or `…_bytes`) take `512M` or `4G`. Fields that are no plain number, text or
switch cannot be said on a command line and are left to Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import click

from penstock.config import parse_bytes
from penstock.errors import ConfigError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_PLAIN: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, str: click.STRING}


class Bytes(click.ParamType[int]):
    """A number of bytes: `4096`, `512M`, `1.5G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or a usage error."""
        try:
            return parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def settings_flags(
    settings: type, *, leave_out: Collection[str] = ()
) -> Callable[[Decorated], Decorated]:
    """A decorator that gives a command one option for each field of this dataclass."""
    options = [
        option for option in map(_option_of(settings), _fields(settings, leave_out)) if option
    ]

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def settings_of(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of all that was said on the command line, what belongs to this dataclass."""
    names = {field.name for field in dataclasses.fields(settings)}
    return {name: value for name, value in values.items() if name in names}


def _fields(settings: type, leave_out: Collection[str]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(settings) if field.name not in leave_out]


def _option_of(
    settings: type,
) -> Callable[[dataclasses.Field[Any]], Callable[[Any], Any] | None]:
    hints = get_type_hints(settings)

    def option(field: dataclasses.Field[Any]) -> Callable[[Any], Any] | None:
        kind = _without_none(hints[field.name])
        flag = "--" + field.name.replace("_", "-")
        text = _sentence(field.metadata.get("help", ""))
        if kind is bool:
            flag = f"{flag}/--no-{flag[2:]}"
            return click.option(
                flag, field.name, default=field.default, show_default=True, help=text
            )
        if kind not in _PLAIN:
            return None
        default: Any = field.default
        size = kind is int and field.name.endswith(("_memory", "_bytes"))
        if size:
            text = f"{text}  [default: {bytes_text(default)}]"
        return click.option(
            flag,
            field.name,
            type=Bytes() if size else _PLAIN[kind],
            default=default,
            show_default=not size and default not in ("", None),
            help=text,
        )

    return option


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else hint


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("." if text else "")


def bytes_text(size: int) -> str:
    """A size as people write it, exactly: `1G`, `1536M`."""
    for unit in ("", "K", "M", "G"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}T"
