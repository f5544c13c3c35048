"""Which engine is meant: the one that is named, or the only one there is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from penstock.cli.enquiry import Enquiry
from penstock.errors import EngineClosed
from penstock.transport import rendezvous


def missing(name: str, address: Path) -> EngineClosed:
    """That it is not there, and which are."""
    others = ", ".join(sorted(path.stem for path in address.parent.glob("*.sock")))
    known = f"; there are: {others}" if others else ""
    return EngineClosed(f"there is no engine {name!r} in {address.parent}{known}")


def engine_named(name: str | None, folder: str) -> Enquiry:
    """A conversation with it. Raises `EngineClosed`, and a usage error when there are several."""
    if name is not None:
        address = rendezvous.address_of(name, folder)
        try:
            return Enquiry(address)
        except EngineClosed as error:
            if address.exists():
                raise
            raise missing(name, address) from error
    place = Path(folder) if folder else rendezvous.default_folder()
    found: list[Enquiry] = []
    for address in sorted(place.glob("*.sock")):
        with contextlib.suppress(EngineClosed):
            found.append(Enquiry(address))
    if len(found) == 1:
        return found[0]
    for conversation in found:
        conversation.close()
    if not found:
        raise EngineClosed(f"no engine runs in {place}")
    names = ", ".join(conversation.address.stem for conversation in found)
    raise click.UsageError(f"{len(found)} engines run in {place}; name one of them: {names}")
