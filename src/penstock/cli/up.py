"""`penstock up`: an engine that belongs to nobody, or to a supervisor (`--foreground`).

In the background, the command returns when the engine is ready; its log is a file. In the
foreground, the engine belongs to the command and ends with it: SIGTERM and Ctrl-C drain it first.
Its flags are the fields of `EngineConfig` and `Model`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.cli.command import (
    Command,
    json_option,
    print_json,
    spinner,
    terminating_as_interrupt,
)
from penstock.cli.enquiry import Enquiry
from penstock.cli.flags import settings_flags, settings_of
from penstock.config import EngineConfig, Model, models_of
from penstock.errors import ConfigError, EngineClosed

if TYPE_CHECKING:
    import subprocess

_PATIENCE = 5.0
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


@click.command(cls=Command, short_help="Run an engine with some models.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--name", default="", help="The engine's name (default: the first model's).")
@settings_flags(Model, leave_out={"source", "name"})
@settings_flags(EngineConfig, leave_out={"name"})
@click.option("--foreground", is_flag=True, help="Stay, and end the engine on SIGTERM or Ctrl-C.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the engine's log goes (default: a file in the user's state folder).",
)
@json_option("where the engine is")
def up(
    sources: tuple[str, ...],
    name: str,
    foreground: bool,
    log: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run an engine with the models SOURCE: Keras files, SavedModel folders, "module:callable" or
    "file.py:callable".

    NAME=SOURCE gives a model a name of its own. Modules are looked for in the current folder, too.
    """
    models = models_of([_model(source, settings_of(Model, settings)) for source in sources])
    config = EngineConfig(name=name or models[0].name, **settings_of(EngineConfig, settings))
    os.environ.setdefault("PENSTOCK_LOG", "INFO")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if foreground:
        sys.exit(_stay(models, config, log, as_json))
    log = (log or _log_file(config.name)).absolute()
    began = time.monotonic()
    with _opened(log) as file:
        process = _start(models, config, None, file, as_json, log)
    _tell_ready(config, models, process.pid, log, time.monotonic() - began, as_json)


def _model(source: str, settings: dict[str, Any]) -> Model:
    named = _NAMED.fullmatch(source)
    if named and not Path(source).exists():
        return Model(named[2], name=named[1], **settings)
    return Model(source, **settings)


def _log_file(name: str) -> Path:
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise ConfigError("there is no home folder for the engine's log: name one, --log") from None
    return Path(state) / "penstock" / f"{name}.log"


def _opened(log: Path) -> IO[bytes]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        raise ConfigError(
            f"the log {log} cannot be written: {error.strerror} (see --log)"
        ) from None


def _start(
    models: tuple[Model, ...],
    config: EngineConfig,
    owner: int | None,
    log: Any,
    as_json: bool,
    log_path: Path | None,
) -> subprocess.Popen[bytes]:
    from penstock.engine.owner import start_engine

    what = "the model" if len(models) == 1 else f"{len(models)} models"
    with (
        terminating_as_interrupt(),
        # Not where the log is shown, too: it would come in the middle of that line.
        spinner(f"{config.name}: loading {what}", not as_json and log is not sys.stderr),
    ):
        try:
            return start_engine(models, config, owner=owner, log=log)
        except EngineClosed as error:
            hint = f" (its log: {log_path})" if log_path else ""
            raise EngineClosed(f"{error}{hint}") from error.__cause__


def _tell_ready(
    config: EngineConfig,
    models: tuple[Model, ...],
    pid: int,
    log: Path | None,
    seconds: float,
    as_json: bool,
) -> None:
    from penstock.transport import rendezvous

    address = rendezvous.address_of(config.name, config.folder)
    names = [model.name for model in models]
    if as_json:
        print_json(
            {
                "name": config.name,
                "pid": pid,
                "address": str(address),
                "log": str(log) if log else None,
                "models": names,
                "workers": _workers(address),
                "seconds": round(seconds, 3),
            }
        )
        return
    elsewhere = address.parent != rendezvous.default_folder().absolute()
    argument = f", folder={str(address.parent)!r}" if elsewhere else ""
    flag = f" --folder {address.parent}" if elsewhere else ""
    click.echo(f"{config.name} is ready ({seconds:.1f} s): {', '.join(names)}")
    facts = {
        "process": str(pid),
        "address": str(address),
        "log": str(log) if log else "",
        "connect": f"penstock.connect({config.name!r}{argument})",
        "end": f"penstock down {config.name}{flag}",
    }
    for label, fact in facts.items():
        if fact:
            click.echo(f"  {label:<8} {fact}")


def _workers(address: Path) -> int:
    with Enquiry(address) as conversation:
        return len(conversation.statistics(_PATIENCE).workers)


# ── in the foreground ──────────────────────────────────────────────────────────────────────────


def _stay(models: tuple[Model, ...], config: EngineConfig, log: Path | None, as_json: bool) -> int:
    """Start the engine, wait for its end or for a signal; returns the exit code."""
    from penstock import launch

    began = time.monotonic()
    owner = os.pidfd_open(os.getpid())
    try:
        with (
            terminating_as_interrupt(),
            _opened(log) if log else contextlib.nullcontext(sys.stderr) as file,
        ):
            process = _start(models, config, owner, file, as_json, log)
            ending = launch.heeded((signal.SIGTERM, signal.SIGINT))
            with _blocked({*ending, signal.SIGCHLD}) as signals:
                seconds = time.monotonic() - began
                _tell_ready(config, models, process.pid, log, seconds, as_json)
                _wait_end(process, signals)
    except KeyboardInterrupt:
        return 0  # told to end while it was loading
    finally:
        os.close(owner)
    if process.returncode == 0:
        return 0
    raise EngineClosed(f"the engine {config.name!r} died: {launch.exit_text(process.returncode)}")


def _wait_end(process: subprocess.Popen[bytes], signals: set[signal.Signals]) -> None:
    """The first signal drains the engine, the second ends it at once, the third kills it."""
    told = 0
    while process.poll() is None:
        if signal.sigwait(signals) != signal.SIGCHLD:
            told += 1
            process.send_signal(signal.SIGTERM if told < 3 else signal.SIGKILL)


@contextlib.contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[set[signal.Signals]]:
    """These signals wait until they are asked for: one wait for all that can happen."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield signals
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
