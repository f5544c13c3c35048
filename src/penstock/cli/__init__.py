"""The command `penstock`: one small module a command, imported when it is used.

- `group`: the commands by name
- `command`: what they share: an error is one line on stderr, an exit code, `--verbose`
- `flags`: options that are read off the fields of the settings
- `enquiry`: a conversation with an engine: how are you, what happens, please end
- `choice`: which engine is meant
- `quantities`: numbers as people read them
- `up`, `down`, `ps`: engines that belong to nobody
- `top`: what an engine does just now
- `trace`: where the time of requests goes, and what limits it
- `predict`, `merge`: a data set in, a data set out, in shards if need be
- `run`: a command with a share of a GPU
- `tune`: how a model runs best on a device
- `train`: a training script in several processes
- `doctor`: whether this machine has all that is needed
- `demo`: what sharing a model changes, measured on this machine

Exit codes: 0, all is well; 1, an error of Penstock's; 2, the command was not understood; 3, done,
but rows have failed; 130, interrupted.
"""

from __future__ import annotations


def main() -> None:
    """The console script's entry."""
    from penstock.cli.command import open_standard
    from penstock.cli.group import penstock

    open_standard()
    penstock(prog_name="penstock")
