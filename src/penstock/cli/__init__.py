"""The command `penstock`: one small module a command, imported when it is used.

- `group`: the commands by name
- `command`: what they share: an error is one line on stderr, an exit code, `--verbose`
- `flags`: options that are read off the fields of the settings
- `enquiry`: a short conversation with an engine: how are you, please end
- `up`, `down`, `ps`: engines that belong to nobody
- `demo`: what sharing a model changes, measured on this machine

Exit codes: 0, all is well; 1, an error of Penstock's; 2, the command was not understood; 130,
interrupted.
"""

from __future__ import annotations


def main() -> None:
    """The console script's entry."""
    from penstock.cli.group import penstock

    penstock(prog_name="penstock")
