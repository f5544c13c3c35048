"""A folder for each test, engines and other processes in it, and the check that nothing remains.

`nothing_remains` ends every test of this folder; what the other fixtures start is ended before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Client, Engine, connect
from tests.faults import leftovers
from tests.faults.company import Bystander, Peer
from tests.faults.files import source
from tests.faults.raw import RawClient
from tests.faults.waiting import eventually


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder; its name marks every process that the test starts."""
    monkeypatch.setenv(leftovers.MARK, str(tmp_path))
    return tmp_path


@pytest.fixture
def run_folder(folder: Path) -> Path:
    """Where the test's engines put their sockets and locks."""
    return folder / "run"


@pytest.fixture(autouse=True)
def nothing_remains(folder: Path, run_folder: Path) -> Iterator[None]:
    """No process, descriptor, mapping, thread or file remains of a test."""
    before = leftovers.belongings()
    yield
    try:
        eventually(lambda: not leftovers.remains(before, str(folder), run_folder), 8)
    except AssertionError:
        left = leftovers.remains(before, str(folder), run_folder)
        leftovers.kill_marked(str(folder))
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def start(run_folder: Path, nothing_remains: None) -> Iterator[Callable[..., Engine]]:
    """Starts engines that end with the test: `start("act", workers=2)`."""
    with ExitStack() as engines:

        def start(model: Any = "act", **settings: Any) -> Engine:
            if isinstance(model, str) and ":" not in model:
                model = source(model)
            engine = Engine(model, folder=str(run_folder), **settings).start()
            engines.callback(engine.close, 0.0)
            return engine

        yield start


@pytest.fixture
def client(nothing_remains: None) -> Iterator[Callable[..., Client]]:
    """Connects to an engine, once more, until the end of the test."""
    with ExitStack() as clients:

        def client(engine: Engine, **options: Any) -> Client:
            return clients.enter_context(connect(str(engine.address), **options))

        yield client


@pytest.fixture
def peer(nothing_remains: None) -> Iterator[Callable[..., Peer]]:
    """Starts other processes by their role (see `peer`), until the end of the test."""
    with ExitStack() as peers:

        def peer(role: str, *arguments: Any, **process: Any) -> Peer:
            return peers.enter_context(Peer(role, *arguments, **process))

        yield peer


@pytest.fixture
def bystander(nothing_remains: None) -> Iterator[Callable[..., Bystander]]:
    """Asks an engine without pause until the end of the test; every answer must be right."""
    with ExitStack() as bystanders:

        def bystander(engine: Engine, model: str | None = None) -> Bystander:
            return bystanders.enter_context(Bystander(engine, model))

        yield bystander


@pytest.fixture
def raw(nothing_remains: None) -> Iterator[Callable[..., RawClient]]:
    """Connects to an engine without the client's manners."""
    with ExitStack() as clients:

        def raw(engine: Engine, **options: Any) -> RawClient:
            return clients.enter_context(RawClient(engine.address, **options))

        yield raw
