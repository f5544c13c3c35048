"""The guides' examples run as they stand there.

A block that begins with `# name.py` is a file in the reader's folder. A `console` block is what is
typed there, line by line (`$ …`), with what it prints below it. Programs that the text does not
start with a command are run after it. Some things need more than that and have a test of their own.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import penstock
from tests.conditions import until

GUIDES = Path(__file__).parent.parent / "docs" / "guides"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_SERVER = "$ gunicorn"


class Reader:
    """Somebody who follows a guide in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PENSTOCK_DIR": str(folder / "engines"),
            "PENSTOCK_CACHE": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def write(self, text: str) -> None:
        """Save the files that a guide shows."""
        for kind, block in _BLOCK.findall(text):
            if kind == "python" and (name := re.match(r"# (\w+\.py)\n", block)):
                (self.folder / name[1]).write_text(block)

    def type(self, command: str) -> str:
        """Type a command; returns what it prints."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def follow(self, text: str) -> None:
        """Type everything, and compare."""
        for kind, block in _BLOCK.findall(text):
            if kind != "console" or block.startswith(_SERVER):
                continue
            command, expected = "", ""
            for line in [*block.splitlines(), "$ "]:
                if not line.startswith("$ "):
                    expected += line + "\n"
                    continue
                if command:
                    printed = self.type(command)
                    assert not expected or printed == expected
                command, expected = line[2:], ""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with nothing but a folder; their engines end with them."""
    reader = Reader(tmp_path)
    yield reader
    for socket_file in (tmp_path / "engines").glob("*.sock"):
        reader.type(f"penstock down {socket_file.stem}")


def _text(guide: str) -> str:
    return (GUIDES / f"{guide}.md").read_text()


@pytest.mark.timeout(150)
def test_sharing(reader: Reader) -> None:
    reader.write(_text("sharing"))
    reader.type("python train.py")
    assert reader.type("python owner.py") == "(1000, 3)\n"
    reader.follow(_text("sharing"))
    assert reader.type("python two.py") == "(2, 3)\n"


def test_batching(reader: Reader) -> None:
    reader.write(_text("batching"))
    reader.follow(_text("batching"))
    assert reader.type("python crowd.py") == "in batches: True True\n"


def test_every_reason_is_explained() -> None:
    from penstock.scheduling.decisions import Closed

    table = _text("batching")
    assert not [reason.value for reason in Closed if f"`{reason.value}`" not in table]


def test_deadlines(reader: Reader) -> None:
    reader.write(_text("deadlines"))
    reader.follow(_text("deadlines"))
    assert reader.type("python nevermind.py") == "True (1, 2)\nTrue\n"


def test_moving(reader: Reader) -> None:
    text = _text("moving")
    reader.write(text)
    reader.follow(text)


def test_gunicorn_with_preload(reader: Reader) -> None:
    text = _text("moving")
    reader.write(text)
    (command,) = re.findall(r"\$ (gunicorn .*)", text)
    reader.type("penstock up vision.py:classify --name vision")
    server = subprocess.Popen(command.split(), cwd=reader.folder, env=reader.environment)
    try:
        answers = {_ask(reader.folder / "gunicorn.sock") for _ in range(40)}
        assert len(answers) == 1
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        reader.type("penstock down vision")


def test_a_new_version_of_a_model(reader: Reader) -> None:
    """Whoever asks all the while is answered by the old model, then by the new one."""
    text = _text("running")
    reader.write(text)
    (commands,) = [block for kind, block in _BLOCK.findall(text) if kind == "console"]
    first, down, second = (line.removeprefix("$ ") for line in commands.splitlines())
    reader.type(first)
    client = penstock.connect("vision", folder=str(reader.folder / "engines"), wait=30)
    answers: list[float] = []

    def ask() -> None:
        while answers[-1:] != [2.0]:
            with suppress(penstock.errors.EngineClosed):  # while it ends
                answers.append(float(client.predict(np.zeros(1))[0]))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        until(lambda: answers or asking.done())
        reader.type(down)
        reader.type(second)
        asking.result(40)
    client.close()
    assert set(answers) == {1.0, 2.0}


def _ask(path: Path) -> str:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = _connected(path)
    connection.request("POST", "/", json.dumps([1.0] * 8))
    response = connection.getresponse()
    assert response.status == 200
    text = response.read().decode()
    connection.close()
    assert len(json.loads(text)) == 3
    return text


def _connected(path: Path) -> socket.socket:
    until = time.monotonic() + 40
    while True:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(40)
        try:
            sock.connect(str(path))
            return sock
        except OSError:
            sock.close()
            assert time.monotonic() < until, "gunicorn does not answer"
            time.sleep(0.05)


@pytest.mark.timeout(150)
def test_a_notebook(reader: Reader) -> None:
    (cell,) = [block for _, block in _BLOCK.findall(_text("moving")) if block.startswith("# %%")]
    (reader.folder / "run.py").write_text(_NOTEBOOK)
    (reader.folder / "cell.py").write_text(cell)
    assert reader.type("python run.py") == "fine\n"


_NOTEBOOK = """
import nbformat
from nbclient import NotebookClient

notebook = nbformat.v4.new_notebook()
notebook.cells = [
    nbformat.v4.new_code_cell(open("cell.py").read()),
    nbformat.v4.new_code_cell("import penstock; penstock.connect('from-notebook').models()"),
]
NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
assert "dense" in str(notebook.cells[1].outputs) or "sequential" in str(notebook.cells[1].outputs)
print("fine")
"""
