"""Options that are read off the fields of a settings dataclass: a new field is a new flag.

The field's name, type and default become the option's, `metadata["help"]` its help. Sizes in bytes
(fields named `…_memory` or `…_bytes`) take `512M` or `4G`, tuples of whole numbers take `1,8,32`.
Fields that are no plain number, text or switch cannot be said on a command line and are left to
Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import click

from penstock.config import parse_bytes
from penstock.errors import ConfigError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Bytes(click.ParamType[int]):
    """A number of bytes: `4096`, `512M`, `1.5G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or a usage error."""
        try:
            return parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between them: `1,8,32`."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, or a usage error."""
        if not isinstance(value, str):
            return tuple(value)
        try:
            return tuple(int(number) for number in value.split(",") if number.strip())
        except ValueError:
            self.fail(f"expected whole numbers, for example 1,8,32; got {value!r}", param, ctx)


_PLAIN: dict[Any, click.ParamType[Any]] = {
    int: click.INT,
    float: click.FLOAT,
    str: click.STRING,
    tuple[int, ...]: Numbers(),
}


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
        kind = _said(hints[field.name])
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
            show_default=not size and default not in ("", None, ()),
            help=text,
        )

    return option


def _said(hint: Any) -> Any:
    """Of the kinds that a field may be, the one that can be said on a command line."""
    if hint in _PLAIN:
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    plain = [kind for kind in kinds if kind in _PLAIN]
    return plain[0] if len(plain) == 1 else kinds[0] if len(kinds) == 1 else hint


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("." if text else "")


def bytes_text(size: int) -> str:
    """A size as people write it, exactly: `1G`, `1536M`."""
    for unit in ("", "K", "M", "G"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}T"
