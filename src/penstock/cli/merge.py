"""`penstock merge`: what the shards of a job have written, as the output of one run."""

from __future__ import annotations

import dataclasses
import sys

import click

from penstock.cli.command import Command, json_option, print_json, print_text
from penstock.cli.predict import ROWS_FAILED


@click.command(cls=Command, short_help="Join the shards of a data set.")
@click.argument("out")
@click.option("--work", default="", help="Where the parts are (default: beside the output).")
@click.option("--restart", is_flag=True, help="Overwrite an existing output.")
@json_option("what was joined")
def merge(out: str, work: str, restart: bool, as_json: bool) -> None:
    """Join the shards of OUT that `penstock predict --shard` has written. They stay."""
    from penstock.offline.merge import merge as merged
    from penstock.offline.report import count_of

    done = merged(out, work=work, restart=restart)
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        rows = count_of(done.written)
        print_text(f"{rows} of {done.shards} shards written to {done.out}")
        if done.failed:
            print_text(f"{count_of(done.failed)} failed, in {done.errors}")
    if done.failed:
        sys.exit(ROWS_FAILED)
