"""`penstock run`: a command with a share of a GPU, unchanged.

The share is claimed, then this process becomes the command (`exec`): its exit code and signals are
its own. It inherits the descriptor that holds the share. If it is Python, TensorFlow in it is
limited from its first import (`devices/startup`); any other command gets the environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import click

from penstock import devices
from penstock.cli.command import Command
from penstock.cli.flags import Bytes
from penstock.devices import claim
from penstock.devices.choose import environment
from penstock.errors import ConfigError

_STARTUP = Path(devices.__file__).parent / "startup"


@click.command(
    cls=Command,
    short_help="Run a command with a share of a GPU's memory.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--gpu-memory",
    required=True,
    type=Bytes(),
    help="How much of a card's memory the command may take in all, such as 4G.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long to wait for room on a card (default: not at all).",
)
@click.option("--gpu", metavar="NAME", help="gpu:N, by the PCI bus, or a UUID (default: any).")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(gpu_memory: int, wait: float | None, gpu: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND with a share of a GPU's memory that nobody else is promised.

    It sees only the card with the most room. TensorFlow in a Python command is limited to the
    share; other commands find it as PENSTOCK_GPU_MEMORY (bytes) and CUDA_VISIBLE_DEVICES.
    """
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"there is no command {command[0]!r}")
    size = claim.share_size(gpu_memory)
    share = claim.take(size, " ".join(command)[:80], wait, gpu)
    os.environ.update(environment(share.promise.card, size), **share.hand_down())
    places = [str(_STARTUP), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; its heirs would too
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(program, command)
    except OSError as error:
        share.release()
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from None
