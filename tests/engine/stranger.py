"""A process of another user: `python -m tests.engine.stranger ADDRESS UID GID GROUPS`.

Asks the engine at this address, and says what came of it. Everything is imported, by asking once,
before it is that user: who may read what is installed here, is another matter.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import penstock


def ask(address: str) -> str:
    """The answer, or the error."""
    try:
        with penstock.connect(address, wait=0.5) as client:
            return str(client.predict(np.arange(3.0)).tolist())
    except penstock.errors.PenstockError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    address, user, group, groups = sys.argv[1:]
    assert ask(address) == "[0.0, 2.0, 4.0]"
    os.setgroups([int(one) for one in groups.split(",") if one])
    os.setgid(int(group))
    os.setuid(int(user))
    print(ask(address))
