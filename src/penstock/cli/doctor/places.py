"""The folder of the engines' sockets, what lies in it, the engines that run, and the cache.

Looks, and removes nothing: what killed engines left behind is `penstock ps`'s to clean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.doctor.finding import Finding, note, ok, problem
from penstock.cli.doctor.machine import cores
from penstock.cli.enquiry import Enquiry
from penstock.errors import ConfigError, EngineClosed
from penstock.model import cache
from penstock.statistics import Statistics
from penstock.transport import rendezvous

_PATIENCE = 2.0
_ELSEWHERE = "set PENSTOCK_DIR to a folder of your own"


def findings(folder: str) -> Iterator[Finding]:
    """Everything here."""
    place = Path(folder) if folder else rendezvous.default_folder()
    if not folder:
        yield _choice()
    yield _folder(place)
    yield from _engines(place)
    yield _cache(cache.folder())


def _choice() -> Finding:
    """Where the folder's name comes from."""
    name = "runtime folder"
    if chosen := os.environ.get("PENSTOCK_DIR"):
        return ok(name, f"PENSTOCK_DIR is {chosen}")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not runtime:
        return note(
            name,
            "XDG_RUNTIME_DIR is not set: sockets lie in the temporary folder",
            "nothing to do, unless TMPDIR differs between processes that are to find each other",
        )
    if not Path(runtime).is_dir():
        return problem(name, f"XDG_RUNTIME_DIR is {runtime}, which is no folder", _ELSEWHERE)
    return ok(name, f"XDG_RUNTIME_DIR is {runtime}")


def _folder(place: Path) -> Finding:
    name = "socket folder"
    if not place.exists() and not place.is_symlink():
        above = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            return problem(
                name, f"{place} cannot be made: {above} cannot be written to", _ELSEWHERE
            )
        return ok(name, f"{place} will be made by the first engine")
    try:
        rendezvous.prepare_folder(place)
        _bind(place)
    except ConfigError as error:
        return problem(name, str(error), f"chmod 700 {place}, if it is yours; or {_ELSEWHERE}")
    except OSError as error:
        return problem(name, f"no socket can be made in {place}: {error.strerror}", _ELSEWHERE)
    return ok(name, f"{place} is private, and takes sockets")


def _bind(place: Path) -> None:
    """Make a socket there, and remove it."""
    address = place / f".doctor-{os.getpid()}"
    try:
        rendezvous.listen(address).close()
    finally:
        with contextlib.suppress(OSError):
            address.unlink()


# ── engines ────────────────────────────────────────────────────────────────────────────────────


def _engines(place: Path) -> Iterator[Finding]:
    stale: list[str] = []
    workers = 0
    for address in sorted(place.glob("*.sock")) if place.is_dir() else ():
        name = f"engine {address.stem}"
        try:
            with Enquiry(address) as conversation:
                try:
                    told = conversation.statistics(_PATIENCE)
                    yield _engine(name, told)
                    workers += len(told.workers)
                except EngineClosed as error:
                    yield problem(
                        name,
                        f"process {conversation.pid} does not answer: {error}",
                        f"look at its log, or end it (kill {conversation.pid})",
                    )
        except EngineClosed:
            if not _locked(address):
                stale.append(address.name)
    if stale:
        yield note(
            "leftovers", f"{', '.join(stale)}: engines that were killed", "penstock ps removes them"
        )
    if workers > cores():
        yield note(
            "workers",
            f"{workers} workers share {cores()} cores",
            "fewer workers (--workers), unless their models wait for something other than a core",
        )


def _engine(name: str, told: Statistics) -> Finding:
    ready = sum(worker.state == "ready" for worker in told.workers)
    text = (
        f"process {told.pid}, {told.state}, {ready} of {len(told.workers)} workers ready, "
        f"{len(told.clients) - 1} clients"
    )
    if told.state == "ready" and not told.healthy:
        advice = "workers die or cannot start: look at the engine's log, or `penstock top`"
        return problem(name, f"{text}, {told.deaths} deaths", advice)
    if told.deaths:
        return note(name, f"{text}, {told.deaths} deaths", "the engine's log says why they died")
    return ok(name, text)


def _locked(address: Path) -> bool:
    """Whether an engine holds the name: it is just starting or ending."""
    try:
        with address.with_suffix(".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# ── the cache ──────────────────────────────────────────────────────────────────────────────────


def _cache(place: Path) -> Finding:
    above = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        return note(
            "cache",
            f"{place} cannot be written: models are measured and compiled anew at every start",
            "set PENSTOCK_CACHE to a folder that can",
        )
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    total = 0
    for path in files:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return ok("cache", f"{place}: {len(files)} files, {total / 2**20:.1f} MB")
