"""A worker has no room: for rows that are to be gathered, or for an answer that fits no slot.

That is no fault of the model's, and no reason to end: the rows for which there is no room fail, and
their callers are told why, who can change that, and whether to try again.
"""

from __future__ import annotations

import errno

from penstock.errors import Kind


class NoRoom(Exception):
    """There is no room for `what`, because of this error of the system's."""

    def __init__(self, what: str, error: OSError | MemoryError) -> None:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:  # waiting does not help
            self.kind = Kind.CONFIG
            super().__init__(
                f"the worker has no room for {what}: it may make no files of that size, and memory "
                "that is shared counts as one; raise the limit where the engine is started "
                "(ulimit -f), or send fewer rows at a time"
            )
            return
        self.kind = Kind.OVERLOADED
        why = str(error) or "out of memory"
        super().__init__(
            f"the worker has no room for {what}: {why}; try again later, or send fewer rows at a "
            "time"
        )
