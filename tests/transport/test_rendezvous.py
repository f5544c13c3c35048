"""Where engines are found: folders that nobody else prepared, locks, and who may come in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import ConfigError, EngineClosed
from penstock.transport import rendezvous
from penstock.transport.rendezvous import NameTaken
from tests.conditions import descriptors, until

_NOBODY = 65534
_SOMEBODY = 12_345
_GROUP = 54_321
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sockets"
    rendezvous.prepare_folder(made)
    return made


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can reach, as /tmp is."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        yield place


# ── the folder ─────────────────────────────────────────────────────────────────────────────────


def test_a_new_folder_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        rendezvous.prepare_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    rendezvous.prepare_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o710, 0o722, 0o777, 0o750])
def test_a_folder_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(ConfigError, match="open to others"):
        rendezvous.prepare_folder(tmp_path / "open")


def test_a_link_or_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(ConfigError, match="not a folder"):
            rendezvous.prepare_folder(tmp_path / name)


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", _NOBODY, -1)
    with pytest.raises(ConfigError, match=rf"belongs to user {_NOBODY}"):
        rendezvous.prepare_folder(tmp_path / "theirs")


@as_root
def test_a_folder_for_a_group(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    rendezvous.prepare_folder(place, str(_GROUP))
    assert place.stat().st_gid == _GROUP
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    rendezvous.prepare_folder(place, str(_GROUP))
    with pytest.raises(ConfigError, match="group"):
        rendezvous.prepare_folder(place, str(_GROUP + 1))
    with pytest.raises(ConfigError, match="open to others"):
        rendezvous.prepare_folder(place)
    place.chmod(0o755)
    with pytest.raises(ConfigError, match="open to others"):
        rendezvous.prepare_folder(place, str(_GROUP))


def test_groups_by_name_and_number() -> None:
    assert rendezvous.group_id("0") == 0
    assert rendezvous.group_id("root") == 0
    with pytest.raises(ConfigError, match="no group"):
        rendezvous.group_id("no-such-group-here")


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_DIR", str(tmp_path / "chosen"))
    assert rendezvous.default_folder() == tmp_path / "chosen"
    monkeypatch.delenv("PENSTOCK_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert rendezvous.default_folder() == tmp_path / "penstock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert rendezvous.default_folder().name == f"penstock-{os.getuid()}"


@pytest.mark.parametrize("name", ["..", ".hidden", "", "a b", "-x", "é"])
def test_names_that_are_no_plain_file_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        rendezvous.address_of(name, "/somewhere")


def test_a_text_with_a_slash_is_a_path() -> None:
    assert rendezvous.address_of("/run/x.sock", "/elsewhere") == Path("/run/x.sock")
    assert rendezvous.address_of("vision", "/run") == Path("/run/vision.sock")
    assert rendezvous.address_of("vision.v1", "/run") == Path("/run/vision.v1.sock")


def test_an_address_holds_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DIR", "chosen")
    assert rendezvous.address_of("vision") == tmp_path / "chosen/vision.sock"
    assert rendezvous.address_of("vision", "run") == tmp_path / "run/vision.sock"
    assert rendezvous.address_of("run/vision.sock") == tmp_path / "run/vision.sock"
    assert rendezvous.address_of(Path("vision.sock")) == tmp_path / "vision.sock"


def test_a_machine_without_a_temporary_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container whose disk cannot be written, but for the folder with the engine's socket."""
    path = folder / "vision.sock"
    with rendezvous.listen(path):
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
        rendezvous.dial(path).close()


# ── the lock ───────────────────────────────────────────────────────────────────────────────────


def test_a_name_is_taken_once(folder: Path) -> None:
    path = folder / "vision.sock"
    lock = rendezvous.take_lock(path)
    before = descriptors()
    with pytest.raises(NameTaken, match="already runs"):
        rendezvous.take_lock(path)
    assert descriptors() == before
    assert not rendezvous.sweep(path)
    rendezvous.release_lock(path, lock)
    assert list(folder.iterdir()) == []
    again = rendezvous.take_lock(path)
    rendezvous.release_lock(path, again)


def test_who_sweeps_while_an_engine_starts_does_not_stop_it(folder: Path) -> None:
    path = folder / "vision.sock"
    sweepers = rendezvous.take_lock(path)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(rendezvous.take_lock, path, patience=20)
        with pytest.raises(TimeoutError):
            starting.result(0.05)
        rendezvous.release_lock(path, sweepers)
        rendezvous.release_lock(path, starting.result(20))
    assert list(folder.iterdir()) == []


def test_an_engine_that_answers_is_not_waited_for(folder: Path) -> None:
    path = folder / "vision.sock"
    lock = rendezvous.take_lock(path)
    with rendezvous.listen(path), pytest.raises(NameTaken):
        rendezvous.take_lock(path, patience=1000)
    rendezvous.release_lock(path, lock)


def test_names_that_begin_alike_have_locks_of_their_own(folder: Path) -> None:
    locks = {
        name: rendezvous.take_lock(rendezvous.address_of(name, str(folder)))
        for name in ("vision", "vision.v1", "vision.v2")
    }
    for name, lock in locks.items():
        rendezvous.release_lock(rendezvous.address_of(name, str(folder)), lock)


def test_a_lock_held_by_another_process_is_respected_until_it_dies(folder: Path) -> None:
    path = folder / "vision.sock"
    code = textwrap.dedent(f"""
        from pathlib import Path
        from penstock.transport import rendezvous
        rendezvous.take_lock(Path({str(path)!r}))
        listener = rendezvous.listen(Path({str(path)!r}))
        print("locked", flush=True)
        input()
    """)
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(NameTaken):
            rendezvous.take_lock(path)
        assert not rendezvous.sweep(path)
        rendezvous.dial(path).close()
        holder.kill()
        holder.wait(20)
    assert path.exists()
    with pytest.raises(EngineClosed, match="no engine"):
        rendezvous.dial(path)
    assert rendezvous.sweep(path)
    assert list(folder.iterdir()) == []


def test_what_a_killed_engine_left_is_no_obstacle(folder: Path) -> None:
    path = folder / "vision.sock"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(path))
    dead.close()
    path.with_suffix(".lock").write_text("")
    lock = rendezvous.take_lock(path)
    with rendezvous.listen(path):
        rendezvous.dial(path).close()
    rendezvous.release_lock(path, lock)


def test_sweeping_nothing_is_fine(folder: Path) -> None:
    assert rendezvous.sweep(folder / "vision.sock")
    assert rendezvous.sweep(folder / "no" / "such" / "folder.sock")


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines start as a third one ends: its lock file goes between open and flock."""
    path = folder / "vision.sock"
    real = fcntl.flock
    removed: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not removed:
            path.with_suffix(".lock").unlink()
            removed.append(descriptor)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    before = descriptors()
    lock = rendezvous.take_lock(path)
    assert descriptors() == before + 1
    assert os.fstat(lock).st_ino == path.with_suffix(".lock").stat().st_ino
    rendezvous.release_lock(path, lock)


def test_a_lock_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (folder / "vision.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        rendezvous.take_lock(folder / "vision.sock")
    assert not target.exists()


# ── the socket ─────────────────────────────────────────────────────────────────────────────────


def test_only_the_user_can_use_the_socket(folder: Path) -> None:
    with rendezvous.listen(folder / "vision.sock"):
        mode = stat.S_IMODE((folder / "vision.sock").stat().st_mode)
        assert mode == 0o600


@pytest.mark.parametrize("deep", [1, 3, 12])
def test_paths_longer_than_a_sockets_address(tmp_path: Path, deep: int) -> None:
    place = tmp_path.joinpath(*["long" * 12] * deep)
    rendezvous.prepare_folder(place)
    path = place / ("n" * 64 + ".sock")
    before = descriptors()
    lock = rendezvous.take_lock(path)
    with rendezvous.listen(path) as listener:
        ours = rendezvous.dial(path)
        theirs, _ = listener.accept()
        ours.send(b"hello")
        assert theirs.recv(10) == b"hello"
        ours.close()
        theirs.close()
    rendezvous.release_lock(path, lock)
    assert descriptors() == before
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["nobody.sock", "no/such/folder.sock", "x" * 120 + "/y.sock"])
def test_no_engine_is_engine_closed(folder: Path, name: str) -> None:
    before = descriptors()
    with pytest.raises(EngineClosed, match="no engine"):
        rendezvous.dial(folder / name)
    assert descriptors() == before


def test_who_is_at_the_other_end() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert rendezvous.peer(one) == (os.getpid(), os.getuid(), os.getgid())
    assert rendezvous.admits(one) == ""
    pidfd = rendezvous.peer_pidfd(one)
    assert pidfd is not None
    assert not os.get_inheritable(pidfd)
    os.close(pidfd)
    one.close()
    other.close()


_BECOME = """
import os, sys
import penstock.client.client
from pathlib import Path
from penstock.errors import EngineClosed
from penstock.transport import rendezvous

user, group, *extra = map(int, sys.argv[2].split(","))
os.setgroups(extra)
os.setgid(group)
os.setuid(user)
path = Path(sys.argv[1])
"""
_DIAL = """
try:
    sock = rendezvous.dial(path)
except EngineClosed as error:
    print("refused:", error, flush=True)
else:
    print("connected", flush=True)
    sys.stdin.read()
"""
_LISTEN = """
listener = rendezvous.listen(path)
path.chmod(0o666)
print("listening", flush=True)
sys.stdin.read()
"""
_CONNECT = """
try:
    penstock.connect("vision", wait=0.2)
except EngineClosed as error:
    print("refused:", error, flush=True)
"""


def _another_user(
    code: str, path: Path, user: int, group: int, extra: list[int] | None = None
) -> subprocess.Popen[str]:
    """A process that becomes this user (its interpreter may be out of that user's reach)."""
    who = ",".join(map(str, [user, group, *(extra or [])]))
    return subprocess.Popen(
        [sys.executable, "-c", _BECOME + code, str(path), who],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _refusal(listener: socket.socket, group: str) -> str:
    sock = until(lambda: _accepted(listener))
    with sock:
        return rendezvous.admits(sock, group)


def _accepted(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except BlockingIOError:
        return None


@as_root
@pytest.mark.parametrize(
    ("group", "extra", "wanted", "admitted"),
    [
        (_SOMEBODY, [], "", False),
        (_SOMEBODY, [], str(_GROUP), False),
        (_GROUP, [], "", False),
        (_GROUP, [], str(_GROUP), True),
        (_SOMEBODY, [_GROUP], str(_GROUP), True),
        (_SOMEBODY, [1_000, _GROUP, 2_000], str(_GROUP), True),
        (_SOMEBODY, [*range(5_000, 5_400), _GROUP], str(_GROUP), True),
        (_SOMEBODY, [1_000, 2_000], str(_GROUP), False),
    ],
)
def test_other_users_come_in_by_their_groups_only(
    open_place: Path, group: int, extra: list[int], wanted: str, admitted: bool
) -> None:
    path = open_place / "vision.sock"
    with rendezvous.listen(path) as listener:
        path.chmod(0o666)  # so that it is the check that refuses, not the file's mode
        with _another_user(_DIAL, path, _NOBODY, group, extra) as process:
            refusal = _refusal(listener, wanted)
            process.communicate("")
    assert (refusal == "") == admitted
    assert admitted or str(_NOBODY) in refusal


@as_root
def test_a_shared_folder_and_socket_let_the_group_through(open_place: Path) -> None:
    folder = open_place / "shared"
    rendezvous.prepare_folder(folder, str(_GROUP))
    path = folder / "vision.sock"
    with rendezvous.listen(path, str(_GROUP)) as listener:
        with _another_user(_DIAL, path, _NOBODY, _SOMEBODY, [_GROUP]) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n"
            until(lambda: _accepted(listener)).close()
            process.communicate("")
        with _another_user(_DIAL, path, _NOBODY, _SOMEBODY) as process:
            assert process.communicate("")[0].startswith("refused")


@as_root
def test_an_engine_of_another_user_is_not_trusted(open_place: Path) -> None:
    """In a folder of ours: whoever bound a socket there is not who we asked for."""
    open_place.chmod(0o777)
    os.chown(open_place, _SOMEBODY, -1)
    path = open_place / "vision.sock"
    with _another_user(_LISTEN, path, _NOBODY, _NOBODY) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "listening\n"
        with pytest.raises(EngineClosed, match=rf"belongs to user {_NOBODY}: not trusted"):
            rendezvous.dial(path)
        with _another_user(_DIAL, path, _SOMEBODY, _SOMEBODY) as process:
            assert "not trusted" in process.communicate("")[0]
        stranger.communicate("")


@as_root
def test_a_default_folder_that_another_user_prepared_is_not_trusted(
    open_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can make /tmp/penstock-1000 before user 1000 does, and wait there."""
    open_place.chmod(0o1777)
    folder = open_place / f"penstock-{_SOMEBODY}"
    folder.mkdir(mode=0o755)
    os.chown(folder, _NOBODY, -1)
    monkeypatch.setenv("TMPDIR", str(open_place))
    monkeypatch.delenv("PENSTOCK_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with _another_user(_LISTEN, folder / "vision.sock", _NOBODY, _NOBODY) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "listening\n"
        with _another_user(_CONNECT, folder, _SOMEBODY, _SOMEBODY) as victim:
            told = victim.communicate("", timeout=30)[0]
        stranger.communicate("")
    assert told.startswith("refused:")
    assert "not trusted" in told


def test_an_engine_that_takes_no_more_connections_is_there_and_nobody_waits_for_it(
    folder: Path,
) -> None:
    path = folder / "vision.sock"
    before = descriptors()
    lock = rendezvous.take_lock(path)
    with rendezvous.listen(path) as listener:
        listener.listen(0)
        waiting: list[socket.socket] = []
        with contextlib.suppress(rendezvous.Crowded):
            while len(waiting) < 10:
                waiting.append(rendezvous.dial(path))
        with pytest.raises(rendezvous.Crowded, match="takes no more connections"):
            rendezvous.dial(path, patience=0.02)
        with pytest.raises(rendezvous.NameTaken):
            rendezvous.take_lock(path)
        path.with_suffix(".lock").unlink()
        with pytest.raises(rendezvous.NameTaken, match="somebody removed its lock"):
            rendezvous.take_lock(path)
        for sock in waiting:
            sock.close()
    rendezvous.release_lock(path, lock)
    assert descriptors() == before
