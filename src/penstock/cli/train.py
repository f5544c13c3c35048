"""`penstock train`: a training script in several processes, on one machine or on many.

What the processes write is shown under their names; the first real error comes last, where it is
seen. `--explain` tells which processes would be started, and starts none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import Command, json_option, print_json
from penstock.cli.flags import Bytes
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.train.launcher.job import Job

_FOLDER = click.Path(file_okay=False, path_type=Path)


class _OfAScript(Command):
    """The command, which knows that options may be meant for the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = f"If it is the script's own, say so: job.py -- {error.option_name} …"
            raise click.UsageError(f"{error.format_message()} {own}", ctx) from None


@click.command(
    cls=_OfAScript,
    short_help="Train in several processes, here or on many machines.",
    context_settings={"allow_interspersed_args": True},
)
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that train on this machine.",
)
@click.option(
    "--ps",
    type=click.IntRange(0),
    default=0,
    help="Parameter servers, on all machines together; a chief comes with them.",
)
@click.option(
    "--nodes",
    default="",
    metavar="HOST:PORT,...",
    help="The machines, each with the first of its ports for this job.",
)
@click.option("--rank", type=click.IntRange(0), help="Which of --nodes this one is, from 0.")
@click.option(
    "--gpus-per-worker",
    type=click.IntRange(0),
    help="GPUs for each worker (default: all, divided evenly; 0: CPUs).",
)
@click.option(
    "--gpu-memory",
    type=Bytes(),
    default=0,
    help="How much of a card each worker may take, such as 4G (default: all of it).",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How often a failed job is started again, from its newest checkpoint.",
)
@click.option("--checkpoints", type=_FOLDER, help="Where the script's checkpoints go.")
@click.option("--profile", type=_FOLDER, help="Write a profile of the training there.")
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a process may stay stopped (SIGSTOP); 0: for ever.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long machines and processes wait for each other; the default of fit's timeout, too.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Between asking a process to end (SIGTERM) and killing it; 1 at most after a failure.",
)
@click.option("--explain", is_flag=True, help="Say what would be started, and start nothing.")
@json_option("what became of the job (or, with --explain, the cluster)")
def train(
    script: str,
    arguments: tuple[str, ...],
    workers: int,
    ps: int,
    nodes: str,
    rank: int | None,
    gpus_per_worker: int | None,
    gpu_memory: int,
    restarts: int,
    checkpoints: Path | None,
    profile: Path | None,
    patience: float,
    timeout: float,
    grace: float,
    explain: bool,
    as_json: bool,
) -> None:
    """Train with SCRIPT, which calls `penstock.train.fit`, in several processes.

    On several machines, the same command on each, with --nodes and --rank; under Slurm (srun) or in
    a Kubernetes Indexed Job without them. What follows -- goes to the script.
    """
    from penstock.train.launcher.job import Job

    job = Job(
        script,
        arguments,
        workers=workers,
        servers=ps,
        gpus_per_worker=gpus_per_worker,
        gpu_memory=gpu_memory,
        restarts=restarts,
        checkpoints=_absolute(checkpoints),
        profile=_absolute(profile),
        patience=patience,
        timeout=timeout,
        grace=grace,
        as_json=as_json,
    )
    job = _on_machines(job, nodes, rank)
    if explain:
        _explain(job, as_json)
        return
    from penstock.train.launcher.owner import run

    sys.exit(run(job))


def _absolute(folder: Path | None) -> str:
    return str(folder.absolute()) if folder else ""


def _on_machines(job: Job, nodes: str, rank: int | None) -> Job:
    """The job with its machines: those that are named, else those of Slurm or Kubernetes."""
    import dataclasses

    from penstock.train.launcher.layout import ports_needed
    from penstock.train.nodes import nodes_found, nodes_named

    if nodes:
        return job.on(nodes_named(nodes, rank))
    if rank is not None:
        raise ConfigError("--rank says which of --nodes this machine is; name them")
    if os.environ.get("TF_CONFIG", "").strip():
        raise ConfigError(
            "TF_CONFIG is set: somebody else has planned this cluster (Kubeflow?). Run the script "
            "itself, python job.py; or unset it, and penstock train plans its own"
        )
    first = nodes_found(os.environ)
    if first is None:
        return job
    # How many ports a machine needs depends on how many machines there are.
    spread = dataclasses.replace(job, nodes=first.addresses, rank=first.rank)
    return job.on(nodes_found(os.environ, ports_needed(spread)))


def _explain(job: Job, as_json: bool) -> None:
    from penstock.train.launcher import layout
    from penstock.train.launcher.cards import seats

    mine = layout.clusters(job)
    found = seats(job, list(mine), promise=False)
    some = next(iter(mine.values()))
    if as_json:
        print_json(
            {
                "kind": some.kind,
                "source": job.source,
                "cluster": some.tasks(),
                "here": [
                    {"task": place.name, "address": cluster.address, "device": found[place].name}
                    for place, cluster in mine.items()
                ],
                "command": [sys.executable, job.script, *job.arguments],
            }
        )
        return
    every = {place.name: place for place in layout.places(job)}
    addresses: dict[str, Any] = {}
    for role, named in some.tasks().items():
        for index, address in enumerate(named):
            addresses["chief" if role == "chief" else f"{role} {index}"] = address
    by = "this machine" if job.machines == 1 else f"{job.machines} machines ({job.source})"
    click.echo(
        f"{some.kind.replace('_', ' ')}, {len(every)} process{'es' * (len(every) > 1)} on {by}:"
    )
    for name, place in every.items():
        where = found[place].name if place in found else f"rank {place.machine}"
        click.echo(f"  {name:<10} {addresses[name]:<22} {where}")
    click.echo(f"each runs: {' '.join([sys.executable, job.script, *job.arguments])}")
    if not job.nodes:
        click.echo("ports are chosen anew at each start")
