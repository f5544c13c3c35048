"""Finding an engine, losing it, and finding it again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineClosed,
    InputError,
    ModelLoadError,
    Overloaded,
)
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment, wire
from tests.client.conftest import FUNCTIONS, model
from tests.client.gate import Gate
from tests.conditions import descriptors, is_alive, until


def test_no_engine_of_that_name(engine_folder: Path) -> None:
    before = descriptors()
    with pytest.raises(EngineClosed, match="nobody-here"):
        penstock.connect("nobody-here", wait=0.05)
    with pytest.raises(EngineClosed, match="no engine"):
        penstock.connect("/no/such/place.sock", wait=0)
    until(lambda: descriptors() <= before)
    assert issubclass(EngineClosed, penstock.errors.PenstockError)


@pytest.mark.parametrize("name", ["", "a b", "..", "é"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError):
        penstock.connect(name, wait=0)


def test_an_engine_is_waited_for(tmp_path: Path) -> None:
    results: list[object] = []
    thread = threading.Thread(
        target=lambda: results.append(
            penstock.connect("comes-later", wait=30).predict(np.ones(1)).tolist()
        )
    )
    thread.start()
    with penstock.Engine(model("doubled"), name="comes-later"):
        thread.join(30)
    assert results == [[2]]


def test_a_wait_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="nan"):
        penstock.connect("nobody-here", wait=math.nan)


def test_by_name_by_address_and_by_folder(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    with penstock.Engine(model("doubled"), name="placed", folder=str(folder)) as engine:
        assert sorted(path.name for path in folder.iterdir()) == ["placed.lock", "placed.sock"]
        for client in (
            penstock.connect("placed", folder=str(folder)),
            penstock.connect(str(engine.address)),
            penstock.connect(engine.address),
            *(penstock.connect(engine.address, wait=0) for _ in range(8)),  # it is there already
        ):
            with client:
                assert client.predict(np.ones(1)).tolist() == [2]
        with pytest.raises(EngineClosed):
            penstock.connect("placed", wait=0)
    assert list(folder.iterdir()) == []


def test_a_name_is_taken_once() -> None:
    with penstock.Engine(model("doubled"), name="only-one") as engine:
        with pytest.raises(ConfigError, match="already runs"):
            penstock.Engine(model("identity"), name="only-one").start()
        assert engine.predict(np.ones(1)).tolist() == [2]
    with penstock.Engine(model("identity"), name="only-one") as again:
        assert again.predict(np.ones(1)).tolist() == [1]


def test_two_engines_side_by_side() -> None:
    with penstock.Engine(model("doubled")) as one, penstock.Engine(model("identity")) as other:
        assert one.name != other.name
        assert one.predict(np.ones(1)).tolist() == [2]
        assert other.predict(np.ones(1)).tolist() == [1]
        assert one.statistics().pid != other.statistics().pid


def test_a_client_outlives_its_engine() -> None:
    with penstock.Engine(model("doubled"), name="phoenix") as engine:
        client = penstock.connect("phoenix", wait=30)
        assert client.predict(np.ones(1)).tolist() == [2]
        first = engine.statistics().pid
    with pytest.raises(EngineClosed):
        Client(client.address, wait=0.05).predict(np.ones(1))
    with penstock.Engine(model("grown"), name="phoenix") as engine:
        assert engine.statistics().pid != first
        assert client.predict(np.ones(1)).shape == (1, 10_000)
    client.close()


def test_a_deadline_holds_while_there_is_no_engine() -> None:
    """A web server's threads must not pile up behind a connection that is waited for."""
    with penstock.Engine(model("doubled")) as engine:
        client = penstock.connect(engine.name, wait=20)
    outcomes: list[BaseException | None] = []

    def ask(deadline: float | None) -> None:
        try:
            client.predict(np.ones(1), deadline=deadline)
        except BaseException as error:
            outcomes.append(error)

    began = time.monotonic()
    ask(0.2)
    patient = threading.Thread(target=ask, args=(None,))
    patient.start()
    threads = [threading.Thread(target=ask, args=(0.3,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 5
    assert [type(error) for error in outcomes] == [DeadlineExceeded] * 4
    assert "no engine at" in str(outcomes[0])
    with penstock.Engine(model("doubled"), name=engine.name):
        patient.join()
        assert client.predict(np.ones(1), deadline=20).tolist() == [2]
    assert len(outcomes) == 4
    client.close()


def test_a_killed_engine_is_noticed_and_its_successor_found(gate: Gate) -> None:
    with penstock.Engine(model("gated", max_batch=1), name="victim") as engine:
        client = penstock.connect("victim", wait=30)
        answers = [client.submit(gate.rows(n)) for n in range(3)]
        gate.wait_started()
        workers = [worker.pid for worker in engine.statistics().workers]
        os.kill(engine.statistics().pid, 9)
        for answer in answers:
            with pytest.raises(EngineClosed):
                answer.result(30)
        until(lambda: not any(is_alive(pid) for pid in workers))
    with penstock.Engine(model("doubled"), name="victim"):
        assert client.predict(np.ones(1)).tolist() == [2]
    client.close()


def test_an_engine_that_is_closed_works_off_its_queue(gate: Gate) -> None:
    engine = penstock.Engine(model("gated", max_batch=1)).start()
    client = penstock.connect(engine.name)
    answers = [client.submit(gate.rows(n)) for n in range(5)]
    gate.wait_started()
    until(lambda: engine.statistics().requests.admitted == 5)
    closing = threading.Thread(target=engine.close, args=(30.0,))
    closing.start()
    until(lambda: not client.connected)
    gate.open()
    assert [int(answer.result(30)[0]) for answer in answers] == list(range(5))
    closing.join(30)
    assert not closing.is_alive()
    client.close()


@pytest.mark.parametrize("rows", [1, 100])
def test_what_was_submitted_before_the_end_is_answered(rows: int) -> None:
    with penstock.Engine(model("doubled")) as engine:
        answers = [engine.submit(np.full(rows, n)) for n in range(7)]
    assert [answer.result(1).tolist() for answer in answers] == [[2 * n] * rows for n in range(7)]


def test_calls_during_the_drain_are_refused_and_disturb_nobody(gate: Gate) -> None:
    """One that comes too late must not cost the others their answers."""
    engine = penstock.Engine(model("gated", max_batch=1)).start()
    pid = engine.statistics().pid
    client = Client(engine.address, wait=0.05)
    early = client.submit(gate.rows(1))
    gate.wait_started()
    client.stop_engine(30)
    until(lambda: not client.connected)
    for _ in range(3):
        with pytest.raises(EngineClosed):
            client.predict(gate.rows(2))
    gate.open()
    assert early.result(30).tolist() == [1]
    until(lambda: not is_alive(pid))
    engine.close()
    client.close()


def test_what_cannot_be_loaded_says_why() -> None:
    before = descriptors()
    with pytest.raises(ModelLoadError, match=r"weights\.bin is not there") as raised:
        penstock.Engine(model("Unloadable")).start()
    assert "functions.py" in str(raised.value.__cause__)
    with pytest.raises(ModelLoadError, match="absent"):
        penstock.Engine(f"{FUNCTIONS}:absent").start()
    assert descriptors() <= before


def test_an_engine_that_dies_while_others_hold_its_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a child does that another thread has forked just then."""
    (tmp_path / "deadly.py").write_text("import os\nos.kill(os.getppid(), 9)\n")
    pipe, held = os.pipe2, []

    def hold(flags: int) -> tuple[int, int]:
        reader, writer = pipe(flags)
        held.append(os.dup(writer))
        return reader, writer

    monkeypatch.setattr(os, "pipe2", hold)
    began = time.monotonic()
    try:
        with pytest.raises(EngineClosed, match="killed by SIGKILL"):
            penstock.Engine(f"{tmp_path}/deadly.py:f").start()
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert time.monotonic() - began < 15


def test_an_engine_is_started_once() -> None:
    engine = penstock.Engine(model("doubled"))
    with pytest.raises(EngineClosed, match="not running"):
        engine.predict(np.ones(1))
    engine.start()
    with pytest.raises(ConfigError, match="already"):
        engine.start()
    pid = engine.statistics().pid
    engine.close()
    engine.close()
    assert not is_alive(pid)
    with pytest.raises(EngineClosed, match="not running"):
        engine.predict(np.ones(1))


def test_engines_leave_nothing_behind(engine_folder: Path) -> None:
    with penstock.Engine(model("doubled")):
        pass
    files = sorted(engine_folder.iterdir())
    before = descriptors()
    threads = threading.active_count()
    for _ in range(3):
        with penstock.Engine(model("doubled")) as engine:
            assert engine.predict(np.ones(1)).tolist() == [2]
    assert sorted(engine_folder.iterdir()) == files
    until(lambda: descriptors() <= before)
    assert threading.active_count() == threads


def test_clients_leave_nothing_behind() -> None:
    with penstock.Engine(model("doubled")) as engine:
        with penstock.connect(engine.name) as client:  # once, so that its worker is under way
            client.predict(np.zeros((3, 1_000)))
        pid = engine.statistics().pid
        until(lambda: len(engine.statistics().clients) <= 1)  # the engine's own
        own = descriptors()
        theirs = descriptors(pid)
        worker = engine.statistics().workers[0].pid
        workers = descriptors(worker)
        for _ in range(30):
            with penstock.connect(engine.name) as client:
                client.predict(np.zeros((3, 1_000)))
        until(lambda: descriptors() <= own)
        until(lambda: descriptors(pid) == theirs)
        until(lambda: descriptors(worker) == workers)


def test_a_process_with_many_files_can_start_an_engine() -> None:
    """Descriptors above 1023, which `select` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_000:
        pytest.skip("this machine allows too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        with penstock.Engine(model("doubled")) as engine:
            assert engine.predict(np.ones(1)).tolist() == [2]
            with penstock.connect(engine.name) as client:
                assert client.predict(np.ones((100, 100))).shape == (100, 100)
                assert client.predict(np.ones(1), deadline=30).tolist() == [2]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_may_make_no_large_files_is_told_so_at_once() -> None:
    """Shared memory counts as a file; waiting for room in it would not help."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with penstock.Engine(model("doubled")) as engine, penstock.connect(engine.name) as client:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(ConfigError, match="ulimit -f"):
                client.predict(np.ones((1_000, 1_000)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert client.predict(np.ones((1_000, 1_000))).shape == (1_000, 1_000)


@contextlib.contextmanager
def _files_left(count: int) -> Iterator[None]:
    """Meanwhile this process may open no more than so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_that_may_open_no_more_files_is_told_so() -> None:
    with penstock.Engine(model("as_long_as_told", max_batch=1)) as engine:
        for count in range(5):
            with _files_left(count), pytest.raises(Overloaded, match="ulimit -n"):
                penstock.connect(engine.address)
        assert engine.predict(np.array([3])).shape == (1, 3)
        long = np.array([10_000])  # its answer does not fit its slot, and comes in a segment
        with _files_left(0), pytest.raises(Overloaded, match="ulimit -n"):
            engine.predict(long)
        assert engine.client.connected
        assert engine.predict(long).shape == (1, 10_000)


def test_an_interrupt_as_a_thread_is_started_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    with penstock.Engine(model("doubled")) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                penstock.connect(engine.address)
        with penstock.connect(engine.address) as client:
            assert client.predict(np.ones((1, 2))).tolist() == [[2.0, 2.0]]


def test_the_engine_loads_no_numpy() -> None:
    with penstock.Engine(model("doubled")) as engine:
        engine.predict(np.ones((50, 50)))
        statistics = engine.statistics()
        engines = Path(f"/proc/{statistics.pid}/maps").read_text()
        workers = Path(f"/proc/{statistics.workers[0].pid}/maps").read_text()
    for name in ("numpy", "ml_dtypes", "tensorflow"):
        assert f"/{name}/" not in engines
    assert "/numpy/" in workers
    assert "/tensorflow/" not in workers


# ── engines that do not behave ─────────────────────────────────────────────────────────────────


@pytest.fixture
def impostor(engine_folder: Path) -> Iterator[tuple[Path, socket.socket]]:
    """A socket where an engine should be."""
    rendezvous.prepare_folder(engine_folder)
    path = engine_folder / "impostor.sock"
    with rendezvous.listen(path) as listener:
        listener.setblocking(True)
        yield path, listener
    path.unlink(missing_ok=True)


def _answering(listener: socket.socket, *messages: bytes) -> threading.Thread:
    """Answer every connection with these messages, then hang up, until the listener is shut."""

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock, contextlib.suppress(OSError):
                for message in messages:
                    sock.send(message)
                sock.settimeout(20)
                while messages and sock.recv(1 << 16):
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


_WELCOME = wire.encode(m.Welcome(m.VERSION, 1, 1, 1 << 20, 100, 1, 65_536))
_CARD = wire.encode(m.ModelCard(0, 4, 4, 1, "f"))
_READY = wire.encode(m.State(m.STATE_READY, 0, ""))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((), "gone|no engine|does not answer"),
        ((b"\xff\xff garbage",), "protocol|does not answer"),
        ((bytes(100_000),), "cannot be received|does not answer"),
        ((wire.encode(m.Ran(1, 2, 3, 4, 5, 6)),), "protocol|does not answer"),
        ((_WELCOME, wire.encode(m.State(m.STATE_LOADING, 0, ""))), "still loading"),
        ((_WELCOME, wire.encode(m.State(m.STATE_CLOSING, 7, "shut"))), "shutting down"),
    ],
)
def test_what_answers_otherwise_is_no_engine(
    impostor: tuple[Path, socket.socket], messages: tuple[bytes, ...], reason: str
) -> None:
    path, listener = impostor
    before = descriptors()
    thread = _answering(listener, *messages)
    with pytest.raises(EngineClosed, match=reason):
        Client(path, wait=0.3).connect()
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)
    until(lambda: descriptors() <= before)


def test_a_client_that_is_closed_while_it_connects_gives_up(
    impostor: tuple[Path, socket.socket],
) -> None:
    client = Client(impostor[0], wait=300)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            client.predict(np.ones(1))
        except EngineClosed as error:
            raised.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    until(lambda: client._link._sessions)
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    for each in (closing, thread):
        each.join(20)
        assert not each.is_alive()
    assert "closed" in str(raised[0])


def test_a_cancelled_task_does_not_go_on_connecting(
    impostor: tuple[Path, socket.socket],
) -> None:
    """Its thread would hold up the end of the process."""
    client = Client(impostor[0], wait=300)

    async def ask_and_leave() -> None:
        task = asyncio.create_task(client.predict_async(np.ones(1)))
        while not client._link._sessions:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask_and_leave())
    until(lambda: not client._link._sessions)


def test_what_was_said_is_told_and_not_that_a_later_attempt_was_not_answered(
    impostor: tuple[Path, socket.socket],
) -> None:
    path, listener = impostor
    closing = wire.encode(m.State(m.STATE_CLOSING, 7, "shut"))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            for message in (_WELCOME, closing):
                sock.send(message)
            sock.settimeout(20)
            while sock.recv(1 << 16):
                continue
        with contextlib.suppress(OSError):
            silent, _ = listener.accept()
            with silent:
                listener.accept()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(EngineClosed, match="shutting down") as refused:
        Client(path, wait=1.0).connect()
    assert type(refused.value) is EngineClosed
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)


def test_why_one_was_rejected_is_told(impostor: tuple[Path, socket.socket]) -> None:
    """Not what became of later attempts, which nobody answers."""
    path, listener = impostor

    def serve() -> None:
        sock, _ = listener.accept()
        sock.send(wire.encode(m.Rejected("not for you")))
        sock.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(EngineClosed, match="not for you"):
        Client(path, wait=0.3).connect()
    thread.join(20)


@pytest.mark.parametrize(
    "lie",
    [
        wire.encode(m.Done([(99, 1)])),
        wire.encode(m.Done([(1, 77)])),
        wire.encode(m.Failed(99, 1, "x")),
        wire.encode(m.Cancelled([(99,)])),
        wire.encode(m.Part(1, 0, 1, 55, 0, 0)),
        wire.encode(m.Answer(12345, 1, b"{}")),
        wire.encode(m.CardTensors(9, 0, (penstock.TensorSpec("int8"),))),
        b"\x1b\x01",
    ],
)
def test_an_engine_that_lies_ends_the_connection_not_the_caller(
    impostor: tuple[Path, socket.socket], lie: bytes
) -> None:
    """Whatever it says, a call ends with an error, and soon."""
    path, listener = impostor

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            for message in (_WELCOME, _CARD, _READY):
                sock.send(message)
            sock.settimeout(20)
            while sock.recv(1 << 16)[:1] != b"\5":
                continue
            sock.send(lie)
            if lie[0] == 25:
                sock.send(wire.encode(m.Done([(1, 0)])))

    client = Client(path, wait=5)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(penstock.errors.PenstockError):
        client.submit(np.zeros(1)).result(20)
    thread.join(20)
    client.close()


def test_an_answer_in_parts_is_what_its_layout_meant_when_it_was_told(
    impostor: tuple[Path, socket.socket],
) -> None:
    path, listener = impostor
    told = np.arange(2, dtype=np.int32)
    layouts = [(penstock.TensorSpec("int32"),), (penstock.TensorSpec("uint64", (9,)),)]

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            for message in (_WELCOME, _CARD, _READY):
                sock.send(message)
            sock.settimeout(20)
            while (data := sock.recv(1 << 16))[:1] != b"\5":
                continue
            number = m.SubmitItem(*wire.decode(data).items[0]).request
            descriptor = segment.create(64)
            with contextlib.closing(segment.Mapping(descriptor, 64)) as mapping:
                mapping.view[: told.nbytes] = told.tobytes()
            sock.send(wire.encode(m.OutputLayout(1, layouts[0])))
            part = wire.encode(m.Part(number, 0, 2, 1, 1, 64))
            socket.send_fds(sock, [part], [descriptor])
            os.close(descriptor)
            sock.send(wire.encode(m.OutputLayout(1, layouts[1])))
            sock.send(wire.encode(m.Done([(number, 0)])))
            sock.recv(1 << 16)

    before = descriptors()
    client = Client(path, wait=5)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert client.submit(np.zeros(2)).result(20).tolist() == told.tolist()
    client.close()
    thread.join(20)
    until(lambda: descriptors() <= before)


def test_a_lie_that_the_caller_reads_itself_is_told_as_an_error(
    impostor: tuple[Path, socket.socket],
) -> None:
    path, listener = impostor

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError):
            for message in (_WELCOME, _CARD, _READY):
                sock.send(message)
            sock.settimeout(20)
            number = 0
            while data := sock.recv(1 << 16):
                if data[:1] == b"\5":
                    number += 1
                    sock.send(wire.encode(m.Failed(number if number < 20 else 99, 5, "no")))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Client(path, wait=5) as client:
        for _ in range(19):  # the thread that reads first leaves it to the caller
            with pytest.raises(penstock.errors.ModelError):
                client.predict(np.zeros(1))
        with pytest.raises(EngineClosed, match="protocol"):
            client.predict(np.zeros(1))
    thread.join(20)


def test_an_engine_that_does_not_read_is_not_waited_for_without_end(
    impostor: tuple[Path, socket.socket],
) -> None:
    path, listener = impostor

    def serve() -> None:
        sock, _ = listener.accept()
        for message in (_WELCOME, _CARD, _READY):
            sock.send(message)
        held.append(sock)

    held: list[socket.socket] = []
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Client(path, wait=5) as client:
        client.connect()
        answers = [client.submit(np.zeros(1), deadline=0.2) for _ in range(100)]
        with pytest.raises(penstock.errors.DeadlineExceeded):
            client.predict(np.zeros(1), deadline=0.1)  # no credit is left
        for answer in answers:
            with pytest.raises(penstock.errors.DeadlineExceeded):
                answer.result(20)
    thread.join(20)
    held[0].close()


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="wrokers"):
        penstock.Engine(model("doubled"), wrokers=2)


def test_an_engine_ends_with_its_owner() -> None:
    code = (
        "import penstock, sys, time\n"
        f"engine = penstock.Engine({str(FUNCTIONS) + ':doubled'!r}, name='orphan').start()\n"
        "print(engine.statistics().pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
    until(lambda: not is_alive(pid))
    with pytest.raises(EngineClosed):
        penstock.connect("orphan", wait=0)
