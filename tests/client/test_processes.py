"""Clients in other processes: pickled, forked, spawned. Each of them connects anew."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import EngineClosed
from tests.client.conftest import model
from tests.client.gate import Gate
from tests.conditions import is_alive, until

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def _in_child(action: Callable[[], Any]) -> None:
    """Run in a forked child; its failure fails the test."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            action()
            code = 0
        except BaseException as error:
            os.write(2, f"in the child: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_pickled_client_works(client: penstock.Client) -> None:
    again = pickle.loads(pickle.dumps(client))
    assert again.address == client.address
    assert again.predict(np.ones(2), model="doubled").tolist() == [2, 2]
    assert client.predict(np.ones(2), model="doubled").tolist() == [2, 2]
    again.close()


def test_a_forked_child_connects_anew(client: penstock.Client) -> None:
    assert client.predict(np.ones(1), model="doubled").tolist() == [2]

    def work() -> None:
        for number in range(20):
            got = client.predict(np.full(3, number), model="doubled")
            assert got.tolist() == [2 * number] * 3
        pids = {one.pid for one in client.statistics().clients}
        assert {os.getpid(), os.getppid()} <= pids

    _in_child(work)
    for number in range(20):
        assert client.predict(np.full(3, number), model="doubled").tolist() == [2 * number] * 3


def test_an_engine_in_a_forked_child_is_a_client(engine: penstock.Engine) -> None:
    """The engine is the parent's process: the child cannot ask the kernel how it is."""
    engine.predict(np.ones(1), model="doubled")

    def work() -> None:
        assert engine.predict(np.ones(1), model="doubled").tolist() == [2]
        engine.close()

    _in_child(work)
    assert engine.predict(np.ones(1), model="doubled").tolist() == [2]


def test_a_pickled_engine_is_a_client(engine: penstock.Engine) -> None:
    predict = pickle.loads(pickle.dumps(engine.predict))
    assert predict(np.ones(1), model="doubled").tolist() == [2]
    predict.__self__.close()
    with pytest.raises(EngineClosed, match="not running"):
        pickle.dumps(penstock.Engine(model("doubled")))


def test_an_engine_made_before_a_fork_belongs_to_who_starts_it() -> None:
    made = penstock.Engine(model("doubled"))

    def work() -> None:
        made.start()
        pid = made.statistics().pid
        assert made.predict(np.ones(1)).tolist() == [2]
        made.close()
        assert not is_alive(pid)

    _in_child(work)


def test_a_child_of_a_child(client: penstock.Client) -> None:
    client.predict(np.ones(1), model="doubled")

    def deeper() -> None:
        assert client.predict(np.ones(1), model="doubled").tolist() == [2]
        _in_child(lambda: client.predict(np.ones(1), model="doubled"))
        assert client.predict(np.ones(1), model="doubled").tolist() == [2]

    _in_child(deeper)


def test_forks_while_other_threads_predict(client: penstock.Client) -> None:
    stop = threading.Event()
    faults: list[BaseException] = []

    def busy(number: int) -> None:
        try:
            while not stop.is_set():
                x = np.full((5, 100), number)
                assert (client.predict(x, model="doubled") == 2 * number).all()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            _in_child(lambda: client.predict(np.ones(1), model="doubled"))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert faults == []


def test_a_childs_end_does_not_end_the_parents_connection(client: penstock.Client) -> None:
    client.predict(np.ones(1), model="doubled")
    number = client._session().channel.fileno()
    for _ in range(3):
        _in_child(lambda: None)
        _in_child(client.close)
    assert client._session().channel.fileno() == number
    assert client.predict(np.ones(1), model="doubled").tolist() == [2]


def test_an_answer_of_the_parents_raises_in_a_child(client: penstock.Client, gate: Gate) -> None:
    waiting = client.submit(gate.rows(7), model="gated")
    finished = client.submit(np.ones(1), model="doubled")
    gate.wait_started()

    def look() -> None:
        for ask in (waiting.result, waiting.exception):
            with pytest.raises(EngineClosed, match="forked"):
                ask(20)

    _in_child(look)
    gate.open()
    assert waiting.result(30).tolist() == [7]
    assert finished.result(30).tolist() == [2]
    _in_child(lambda: waiting.result(1))  # what was there before the fork is there still


def test_a_fork_after_the_engines_end_closes_nobodys_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child lets go of the connection's descriptors; their numbers may be others' by now."""
    with penstock.Engine(model("doubled")) as engine:
        ended = penstock.connect(engine.name)
        ended.predict(np.ones(1))
    until(lambda: not ended.connected)
    files = [open(tmp_path / f"{number}", "w") for number in range(40)]  # noqa: SIM115

    def look() -> None:
        for file in files:
            os.fstat(file.fileno())
            file.write("still here")
            file.flush()

    with penstock.Engine(model("doubled")) as other, penstock.connect(other.name) as working:
        working.predict(np.ones(1))

        ignored: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", ignored.append)

        def both() -> None:
            assert ignored == []  # nothing went wrong on the way into the child
            look()
            assert working.predict(np.ones(1)).tolist() == [2]

        _in_child(both)
    for file in files:
        file.close()
        assert Path(file.name).read_text() == "still here"
    ended.close()


def test_an_engine_object_in_a_child_ends_nothing(engine: penstock.Engine) -> None:
    _in_child(engine.close)
    assert engine.predict(np.ones(1), model="doubled").tolist() == [2]


def _work_elsewhere(client: penstock.Client, number: int, results: Any) -> None:
    got = client.predict(np.full(3, number), model="doubled")
    results.put((os.getpid(), got.tolist()))


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_clients_go_to_processes_of_every_kind(client: penstock.Client, method: str) -> None:
    context = multiprocessing.get_context(method)
    results = context.Queue()
    children = [
        context.Process(target=_work_elsewhere, args=(client, number, results))
        for number in range(2)
    ]
    for child in children:
        child.start()
    got = sorted(results.get(timeout=50) for _ in children)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert sorted(rows for _, rows in got) == [[0, 0, 0], [2, 2, 2]]
    assert os.getpid() not in {pid for pid, _ in got}
    results.close()


def test_a_call_from_a_finalizer_of_the_ending_interpreter_fails(engine: penstock.Engine) -> None:
    """There is no thread to be had any more: it would wait for one for ever."""
    code = """if True:
        import sys, numpy, penstock
        client = penstock.connect(sys.argv[1])
        class Last:
            def __del__(self, client=client, x=numpy.ones(1), kind=penstock.errors.EngineClosed):
                try:
                    client.predict(x, model="doubled")
                except kind as error:
                    print(error)
        last = Last()
        assert client.predict(numpy.ones(1), model="doubled").tolist() == [2]
    """
    command = [sys.executable, "-c", code, str(engine.address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "this process is ending" in done.stdout
