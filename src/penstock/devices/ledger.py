"""Who was promised how much of which card: one folder for all processes of a user.

A promise is a file whose holder keeps it locked (`flock`): when the holder ends, however it ends,
the kernel unlocks it and the promise is void. All promises are made under one more lock, so of two
processes that ask at the same instant only one gets the last gigabyte. A child that is forked
closes its copy: it neither keeps nor ends a promise.

What is left of a card then is reckoned in `room`. Of other users' promises nothing is known, only
what they use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from penstock.devices.cards import Card, usable_cards
from penstock.devices.limit import CLAIM
from penstock.devices.room import Promise, Room, reckon, refusal
from penstock.errors import ConfigError, DeviceMemoryError
from penstock.transport.rendezvous import default_folder, prepare_folder

_SUFFIX = ".promise"
_PATIENCE, _PAUSE = 30.0, 0.005  # seconds, for the ledger's own lock
_held: set[Share] = set()


class Share:
    """The holder's end of a promise. Whoever took it calls `release`, or ends."""

    def __init__(self, path: Path, descriptor: int, promise: Promise) -> None:
        self.path = path
        self.descriptor = descriptor
        self.promise = promise
        self._changing = threading.Lock()  # so that nothing is written after the release
        _held.add(self)

    def change(self, *, size: int | None = None, used: int | None = None) -> None:
        """Make it smaller, or say how much of it is in use."""
        if size is not None and size > self.promise.size:
            raise ValueError(f"a share of {self.promise.size} bytes cannot grow to {size}")
        if self.descriptor < 0:
            return
        known = self.promise
        changed = replace(
            known,
            size=known.size if size is None else size,
            used=known.used if used is None else used,
        )
        with _locked(self.path.parent), self._changing:
            if self.descriptor >= 0:
                _write(self.descriptor, changed)
                self.promise = changed

    def release(self) -> None:
        """Give it back. Does nothing the second time, or in a child that was forked."""
        if self.descriptor < 0:
            return
        with self._changing:
            self.path.unlink(missing_ok=True)
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close this process's end; the promise lasts while another process has it open."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        _held.discard(self)

    def hand_down(self) -> dict[str, str]:
        """Let the program that this process becomes (`exec`) hold it: what to set for it."""
        os.set_inheritable(self.descriptor, True)
        return {CLAIM: f"{self.descriptor}:{self.path}"}


def _forget_in_child() -> None:
    for share in list(_held):
        share.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def inherited() -> Share | None:
    """The share that this process was started with (`penstock run`), if it still has it."""
    number, _, name = os.environ.get(CLAIM, "").partition(":")
    for share in _held:
        if number == str(share.descriptor):
            return share
    try:
        descriptor, path = int(number), Path(name)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            return None
        promise = _read(descriptor)
    except (OSError, ValueError):
        return None
    return Share(path, descriptor, promise) if promise else None


def place() -> Path:
    """The ledger's folder: `$PENSTOCK_LEDGER`, else one beside the engines' sockets."""
    chosen = os.environ.get("PENSTOCK_LEDGER")
    return Path(chosen).absolute() if chosen else default_folder().absolute() / "gpus"


def promises() -> list[Promise]:
    """All that hold. Only looks: nothing is made or removed."""
    folder = place()
    if not (folder / "lock").exists():
        return []
    with _locked(folder):
        return [promise for _, promise in _entries(folder) if promise]


def rooms(look: Callable[[], Sequence[Card]] = usable_cards) -> list[Room]:
    """What is left of each card."""
    return reckon(look(), promises())


def take(
    size: int | None,
    purpose: str,
    *,
    card: str = "",
    look: Callable[[], Sequence[Card]] = usable_cards,
) -> Share:
    """Promise memory of the card with the most room, or of the one with this UUID.

    `size` in bytes; `None`: all that is left there. Raises `DeviceMemoryError`, with the numbers.
    """
    folder = _prepared()
    with _locked(folder):
        found = reckon(look(), _clean(folder))
        candidates = [room for room in found if card in ("", room.card.uuid)]
        best = max(candidates, key=lambda room: room.left, default=None)
        wanted = 1 if size is None else size
        if best is None or best.left < wanted:
            raise DeviceMemoryError(refusal(size, candidates))
        promise = Promise(
            best.card.uuid, best.left if size is None else size, os.getpid(), purpose[:200]
        )
        try:
            return _make(folder, promise)
        except OSError as error:
            raise ConfigError(
                f"a promise of GPU memory cannot be kept in {folder}: {error.strerror}; "
                "PENSTOCK_LEDGER names another folder"
            ) from error


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def _prepared() -> Path:
    folder = place()
    if not folder.parent.exists():
        prepare_folder(folder.parent)
    owner = folder.parent.stat()
    if owner.st_uid not in (0, os.getuid()) and not owner.st_mode & stat.S_ISVTX:
        raise ConfigError(
            f"{folder.parent} belongs to user {owner.st_uid}, not to {os.getuid()}; "
            "PENSTOCK_LEDGER names another folder for promises of GPU memory"
        )
    prepare_folder(folder)
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time. It is held for a moment; who holds it longer was stopped."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / "lock", flags, 0o600)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise DeviceMemoryError(
                        f"{folder / 'lock'} was locked for {_PATIENCE:.0f} s: a process that asks "
                        "for GPU memory was stopped in the middle (fuser says which)"
                    ) from None
                time.sleep(_PAUSE)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have it open, too
        os.close(descriptor)


def _entries(folder: Path) -> Iterator[tuple[Path, Promise | None]]:
    """Each file, and its promise if that holds."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise  # nothing is known of it: it may hold (this process may have no descriptors)
            yield path, None
            continue
        try:
            yield path, _read(descriptor) if _is_locked(descriptor) else None
        finally:
            os.close(descriptor)


def _clean(folder: Path) -> list[Promise]:
    """Those that hold; the others' files are removed."""
    found = []
    for path, promise in _entries(folder):
        if promise is None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        else:
            found.append(promise)
    return found


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _make(folder: Path, promise: Promise) -> Share:
    path = folder / f"{promise.pid}-{secrets.token_hex(4)}{_SUFFIX}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    share = Share(path, descriptor, promise)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _write(descriptor, promise)
    except BaseException:
        share.release()
        raise
    return share


def _write(descriptor: int, promise: Promise) -> None:
    text = json.dumps(asdict(promise)).encode()
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))


def _read(descriptor: int) -> Promise | None:
    """What a file says; `None` if it is damaged."""
    try:
        told = json.loads(os.pread(descriptor, 1 << 16, 0))
        promise = Promise(*(told[key] for key in ("card", "size", "pid", "purpose", "used")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = (promise.size, promise.pid, promise.used or 0)
    sound = all(type(number) is int and number >= 0 for number in numbers)
    return promise if sound and isinstance(promise.card, str) else None
