"""Every error that Penstock raises: whose fault it was, and whether trying again may help.

Where each one comes from, along the life of a prediction::

    caller ──InputError──▶ client ──Overloaded, DeadlineExceeded──▶ engine ──▶ worker
                             ▲                                         │          │
                             └── EngineClosed (no engine) ◀────────────┘          │
                                 WorkerLost (the worker died on this row) ◀───────┤
                                 NoWorkers (all of them died, on whatever row)    │
                                 ModelError (the model raised on this row) ◀──────┘

`ConfigError` and `ModelLoadError` come before any prediction: something cannot be started.
`TrainingError` comes from training alone.
Across processes an error travels as a `Kind`, a text and, for `ModelError`, the remote traceback,
which becomes the `__cause__` of the error raised in the caller.
"""

from __future__ import annotations

import enum
from concurrent.futures import CancelledError
from typing import Any


class PenstockError(Exception):
    """The root of the tree. `retryable` says whether the same call may succeed later."""

    retryable = False


class InputError(PenstockError, ValueError):
    """The caller's fault: an array, a name or an option does not fit. Says what was expected."""


class ConfigError(PenstockError, ValueError):
    """A setting is unknown, impossible or contradicts another one, or a name is taken."""


class Overloaded(PenstockError):
    """A queue or the client's memory is full. Retry later, or send less at a time."""

    retryable = True


class DeadlineExceeded(PenstockError, TimeoutError):
    """The answer was not there, or could not have been there, at the caller's deadline."""


class Cancelled(PenstockError, CancelledError):
    """The request was cancelled before it was answered."""


class ModelError(PenstockError):
    """The model raised on this row. Its own traceback is the `__cause__`."""


class WorkerLost(PenstockError):
    """The worker died while it ran this row, and there was no other try left."""

    retryable = True


class NoWorkers(WorkerLost):
    """All workers are down and restarts did not help: whatever the row, it cannot be run now."""


class EngineClosed(PenstockError):
    """There is no engine behind this client: it ended, it is ending, or it was never there."""

    retryable = True


class ModelLoadError(PenstockError):
    """A model could not be loaded. Nothing was started, or everything was stopped again."""


class DeviceMemoryError(PenstockError):
    """A device has too little memory. Says how much was needed and how much there is."""


class TrainingError(PenstockError):
    """Training cannot go on: its loss is no number any more, for one. Says what was before."""


class RowsFailed(PenstockError):
    """Some rows of one call failed; the others did not, and are kept.

    `errors` maps each failed row's index to its error. `results` has the shape that the call would
    have returned; its failed rows hold zeros (empty bytes for strings), and it is `None` when no
    row succeeded.
    """

    def __init__(self, rows: int, errors: dict[int, PenstockError], results: Any) -> None:
        self.rows = rows
        self.errors = errors
        self.results = results
        self.retryable = all(error.retryable for error in errors.values())
        named = ", ".join(str(row) for row in sorted(errors)[:8])
        more = ", …" if len(errors) > 8 else ""
        first = errors[min(errors)]
        super().__init__(
            f"{len(errors)} of {rows} rows failed (rows {named}{more}); "
            f"the first: {type(first).__name__}: {first}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return RowsFailed, (self.rows, self.errors, self.results)


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text: the `__cause__` of the local one."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""


class Kind(enum.IntEnum):
    """How an error is named in a message."""

    INPUT = 1
    OVERLOADED = 2
    DEADLINE = 3
    CANCELLED = 4
    MODEL = 5
    WORKER_LOST = 6
    ENGINE_CLOSED = 7
    MODEL_LOAD = 8
    DEVICE_MEMORY = 9
    CONFIG = 10
    TRAINING = 11
    NO_WORKERS = 12


_TYPES: dict[int, type[PenstockError]] = {
    Kind.INPUT: InputError,
    Kind.OVERLOADED: Overloaded,
    Kind.DEADLINE: DeadlineExceeded,
    Kind.CANCELLED: Cancelled,
    Kind.MODEL: ModelError,
    Kind.WORKER_LOST: WorkerLost,
    Kind.ENGINE_CLOSED: EngineClosed,
    Kind.MODEL_LOAD: ModelLoadError,
    Kind.DEVICE_MEMORY: DeviceMemoryError,
    Kind.CONFIG: ConfigError,
    Kind.TRAINING: TrainingError,
    Kind.NO_WORKERS: NoWorkers,
}


def kind_of(error: BaseException) -> Kind:
    """How a message names this error; what is none of ours is the settings' fault."""
    return next((Kind(kind) for kind, type_ in _TYPES.items() if type(error) is type_), Kind.CONFIG)


def again(error: PenstockError) -> PenstockError:
    """The same error, to raise once more: a raised one keeps the frames that it came through."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def from_message(kind: int, text: str, remote: str = "") -> PenstockError:
    """The error that a message describes, with the remote traceback as its cause."""
    error = _TYPES.get(kind, PenstockError)(text)
    if remote:
        error.__cause__ = RemoteTraceback(remote)
    return error
