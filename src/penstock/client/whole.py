"""What must not be left half done: an exception out of nowhere in between ends the session.

Python raises such exceptions (Ctrl-C) into the main thread, after any call. When one comes between
two steps of the bookkeeping, nobody knows what has been done: a request that was taken out of the
list but not sent, a slot that is nobody's. So the session is over, as if the engine had gone; its
thread, which nobody interrupts, tells everybody, and the next call connects anew.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from penstock.errors import EngineClosed, PenstockError

if TYPE_CHECKING:
    from penstock.client.session import Session

INTERRUPTED = EngineClosed("the connection was given up: a caller was interrupted while it used it")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def whole(
    method: Callable[Concatenate[Session, Arguments], Result],
) -> Callable[Concatenate[Session, Arguments], Result]:
    """A session's method that is done wholly, or fails with a `PenstockError`, or ends it."""

    @functools.wraps(method)
    def guarded(
        session: Session, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        try:
            return method(session, *arguments, **options)
        except PenstockError:
            raise
        except BaseException:
            session.closed = session.closed or INTERRUPTED  # no call before: there may be another
            session.usable = False
            session.reader.interrupt()
            raise

    return guarded


@contextlib.contextmanager
def interrupts_as_such() -> Iterator[None]:
    """While a thread is started: an interrupt in the middle of a lock of Python's own leaves it
    free, and comes as the RuntimeError of whoever releases it next."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
