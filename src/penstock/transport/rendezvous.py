"""Where an engine's socket lies, who may use it, and what is left of one that was killed.

An engine named *vision* has two files in the folder: `vision.sock`, and `vision.lock`, which it
keeps locked as long as it lives. Whoever gets the lock knows that no engine is behind the socket
and may remove both (`sweep`); an engine takes the lock before it binds. The folder belongs to the
user alone (0700), or also to a group when one is named (0750, the socket 0660). Both sides check
who the other one is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import grp
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ConfigError, EngineClosed
from penstock.spec import check_name

_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_LONGEST_PATH = 107
_USED_UP = (errno.EMFILE, errno.ENFILE)  # no more descriptors
_PATIENCE, _PAUSE = 0.5, 0.005  # seconds


def default_folder() -> Path:
    """`$PENSTOCK_DIR`, else one in the user's runtime folder, else one in the temporary folder."""
    if chosen := os.environ.get("PENSTOCK_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "penstock"
    return _temporary_folder()


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"


def address_of(name_or_address: str | os.PathLike[str], folder: str = "") -> Path:
    """The socket's path for an engine's name; a path, or a text with a slash, is one already."""
    if not isinstance(name_or_address, str) or "/" in name_or_address:
        return Path(name_or_address).absolute()  # the process may go elsewhere, or send it away
    check_name(name_or_address, "engine name")
    return Path(folder or default_folder()).absolute() / f"{name_or_address}.sock"


def prepare_folder(folder: Path, group: str = "") -> None:
    """Make the folder, or refuse one that others could have prepared."""
    gid = group_id(group) if group else None
    try:
        folder.mkdir(mode=0o700, parents=True)
        if gid is not None:
            os.chown(folder, -1, gid)
            folder.chmod(0o750)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}") from None
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder} is not a folder")
    if status.st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to user {status.st_uid}, not to {os.getuid()}")
    allowed = 0o700 if gid is None else 0o770
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if mode & ~allowed:
        raise ConfigError(f"{folder} is open to others (mode {mode:o}); expected {allowed:o}")
    if gid is not None and status.st_gid != gid:
        raise ConfigError(f"{folder} belongs to group {status.st_gid}, not to {group} ({gid})")


@functools.cache
def group_id(group: str) -> int:
    """The number of a group given by name or number, as it was when it was first asked for."""
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"no group is named {group!r}") from None


class NameTaken(ConfigError):
    """An engine of that name runs already."""


def take_lock(socket_path: Path, patience: float = _PATIENCE) -> int:
    """Lock the engine's name; returns the lock's descriptor. Raises `NameTaken`.

    Whoever sweeps has the lock, too, but only for a moment: while no engine answers, it is waited
    for, `patience` seconds at most.
    """
    path = socket_path.with_suffix(".lock")
    until = time.monotonic() + patience
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                _check_silent(socket_path, descriptor)
                return descriptor
        except BlockingIOError:
            if time.monotonic() >= until or _answers(socket_path):
                os.close(descriptor)
                raise NameTaken(
                    f"an engine already runs at {socket_path}: end it first, or choose another name"
                ) from None
            time.sleep(_PAUSE)
        except FileNotFoundError:
            pass
        os.close(descriptor)  # again: the file was removed between opening and locking, or swept


def _answers(socket_path: Path) -> bool:
    try:
        dial(socket_path).close()
    except Crowded:
        return True
    except EngineClosed:
        return False
    return True


def _check_silent(socket_path: Path, descriptor: int) -> None:
    """Its lock file may have been removed under an engine that lives."""
    if _answers(socket_path):
        socket_path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(descriptor)
        raise NameTaken(f"an engine already runs at {socket_path} (somebody removed its lock)")


def release_lock(socket_path: Path, descriptor: int) -> None:
    """Remove the socket and the lock, then unlock."""
    for path in (socket_path, socket_path.with_suffix(".lock")):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def sweep(socket_path: Path) -> bool:
    """Remove what a killed engine left. Returns whether no engine is there (any more)."""
    if not (socket_path.exists() or socket_path.with_suffix(".lock").exists()):
        return True
    try:
        descriptor = take_lock(socket_path, patience=0)
    except (NameTaken, OSError):
        return False
    release_lock(socket_path, descriptor)
    return True


def listen(socket_path: Path, group: str = "") -> socket.socket:
    """A listening socket at this path. The caller holds the name's lock."""
    socket_path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _short(socket_path) as address:
        sock.bind(address)
    if group:
        os.chown(socket_path, -1, group_id(group))
    socket_path.chmod(0o660 if group else 0o600)
    sock.listen(1024)
    sock.setblocking(False)
    return sock


class Crowded(EngineClosed):
    """An engine is there, and takes no more connections just now; perhaps it is stopped."""


def dial(socket_path: Path, patience: float = 0.0) -> socket.socket:
    """Connect to the engine at this path. Raises `EngineClosed` when there is none.

    Never waits, except `patience` seconds for an engine that others are just connecting to.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return _dial(socket_path)
        except Crowded:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE)


def _dial(socket_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        with _short(socket_path) as address:
            sock.connect(address)
        sock.setblocking(True)
        uid = peer(sock)[1]
        trusted = {0, os.getuid()}
        if uid not in trusted and socket_path.parent != _temporary_folder():
            with contextlib.suppress(OSError):
                trusted.add(socket_path.parent.stat().st_uid)  # chosen; that one anybody can make
        if uid not in trusted:
            raise EngineClosed(f"the engine at {socket_path} belongs to user {uid}: not trusted")
    except BlockingIOError:
        sock.close()
        raise Crowded(
            f"the engine at {socket_path} takes no more connections: others wait already"
        ) from None
    except OSError as error:
        sock.close()
        there_is_none = error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        why = "penstock ps lists those that run" if there_is_none else error.strerror
        raise EngineClosed(f"no engine at {socket_path}: {why}") from None
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """An address for this path that fits a socket's limit of 107 bytes, however long the path."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """The process, user and group at the other end when it connected."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return pid, uid, gid


def admits(sock: socket.socket, group: str = "") -> str:
    """Why the process at the other end may not use this engine; "" when it may."""
    _, uid, gid = peer(sock)
    if uid in (0, os.getuid()):
        return ""
    if group:
        wanted = group_id(group)
        if wanted == gid or wanted in _peer_groups(sock):
            return ""
    return f"user {uid} may not use this engine" + (f" (nor is in {group})" if group else "")


def _peer_groups(sock: socket.socket) -> list[int]:
    """The other groups of the process at the other end (Python's own call takes only 256)."""
    groups = (ctypes.c_uint32 * 65536)()
    size = ctypes.c_uint32(ctypes.sizeof(groups))
    failed = ctypes.CDLL(None).getsockopt(
        sock.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)
    )
    return [] if failed else list(groups[: size.value // 4])


def peer_pidfd(sock: socket.socket) -> int | None:
    """A descriptor that becomes readable when the process at the other end exits.

    `None` if that cannot be had of it; raises `OSError` if there are no more descriptors.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("i", raw)[0])
    except OSError as error:
        if error.errno in _USED_UP:
            raise
    try:
        return os.pidfd_open(peer(sock)[0])
    except OSError as error:
        if error.errno in _USED_UP:
            raise
    return None
