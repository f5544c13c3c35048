"""A process whose cluster is lost still ends, and goes on where its user catches the error.

When a function or a variable of TensorFlow's is freed, it tells the tasks that have it, and waits
for ever for one that is stopped or cut off. What an error leaves behind is freed as soon as nobody
looks at it any more, and all the rest when Python ends. So what has to do with a lost cluster is
never freed. Should the process wait at its end all the same, it is ended (`faulthandler`, which
needs no lock of Python's).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
from collections.abc import Iterator
from typing import Any

from penstock.errors import WorkerLost

_AT_LAST = 10.0  # seconds
_ends: list[bool] = []


@contextlib.contextmanager
def never_freed() -> Iterator[list[Any]]:
    """What is put into this list, and what an error holds, if the cluster is lost in the block."""
    kept: list[Any] = []
    try:
        yield kept
    except WorkerLost as error:
        link: BaseException | None = error
        while link is not None:
            kept.append(link.__traceback__)
            link = link.__cause__ or link.__context__
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        if not _ends:
            _ends.append(True)
            atexit.register(_end_at_last)
        raise


def _end_at_last() -> None:
    with contextlib.suppress(AttributeError, ValueError, OSError):  # stderr is no file
        faulthandler.dump_traceback_later(_AT_LAST, exit=True)
