"""`penstock.Engine`: starting an engine, on the side of whoever starts it.

The engine belongs to the process that started it: it ends with the `with` block, with `close`, and
when that process exits or is killed. `start_engine` is the same without an owner (`penstock up`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from penstock import launch
from penstock.client.about import CallOptions, ServedModel, StreamOptions
from penstock.client.answer import Answer
from penstock.client.client import Client
from penstock.config import EngineConfig, Model, models_of, to_json
from penstock.errors import ConfigError, EngineClosed, from_message
from penstock.model.live import archived
from penstock.statistics import Statistics
from penstock.transport import rendezvous

if TYPE_CHECKING:
    from penstock.tracing.record import Trace

_numbers = itertools.count(1)
_LISTENING_LIMIT = 30.0
_EXIT_LIMIT = 5.0


class Engine:
    """An engine that belongs to this process, and ends with it.

    `models` is a source (a Keras file, a SavedModel folder, a Keras model, `"module:function"`), a
    `Model`, a list of them, or a dict by name. `name` is what other processes pass to
    `penstock.connect`. All other arguments are fields of `EngineConfig` (`workers`, `devices`,
    `gpu_memory`, …) or, with a single source, of `Model` (`max_batch`, `precision`, …); one that
    is unknown or impossible raises `ConfigError`.

    Nothing runs before `start`, which `with` calls. A running engine has the methods of a `Client`.
    """

    def __init__(self, models: Any, *, name: str = "", **settings: Any) -> None:
        known = {field.name for field in fields(EngineConfig)}
        model_fields = {field.name for field in fields(Model)} - {"source", "name"}
        for_model = {key: settings.pop(key) for key in list(settings) if key in model_fields}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ConfigError(
                f"unknown setting {unknown[0]!r}; known: {', '.join(sorted(known | model_fields))}"
            )
        if for_model:
            models = _with_settings(models, for_model)
        self.model_settings = models_of(models)
        name = name or f"engine-{os.getpid()}-{next(_numbers)}"
        self.config = EngineConfig(name=name, **settings)
        self.address = rendezvous.address_of(self.config.name, self.config.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """What other processes pass to `penstock.connect`."""
        return self.config.name

    def start(self) -> Engine:
        """Start the engine and wait until its models are loaded, compiled and warm.

        Returns the engine itself. Raises `ModelLoadError` when a model cannot be loaded,
        `DeviceMemoryError` when it does not fit, `ConfigError` when the name is taken or a device
        is not there, `EngineClosed` when the engine's process ends meanwhile.
        """
        if self._process is not None:
            raise ConfigError("this engine was started already")
        self._pid = os.getpid()
        launch.open_standard()
        owner = os.pidfd_open(self._pid)
        try:
            self._process = start_engine(self.model_settings, self.config, owner=owner)
        finally:
            os.close(owner)
        self._client = Client(self.address, wait=5.0, label=f"owner of {self.name}")
        try:
            self._client.connect()
        except BaseException:
            self.close()
            raise
        return self

    def close(self, drain: float | None = None) -> None:
        """End the engine: it works off what is queued, for at most `drain` seconds.

        By default these are the setting `drain_timeout`. May be called again.
        """
        process, self._process = self._process, None
        client, self._client = self._client, None
        if process is None or self._pid != os.getpid():
            return
        drain = self.config.drain_timeout if drain is None else drain
        with contextlib.suppress(ProcessLookupError, EngineClosed):
            if client is not None and client.connected:
                client.stop_engine(drain)
            else:
                process.send_signal(signal.SIGTERM)
        try:
            launch.wait(process, drain + _EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if client is not None:
            client.close()
        rendezvous.sweep(self.address)

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self.client.__reduce__()  # only its starter owns it: elsewhere it is a client

    def __repr__(self) -> str:
        return f"<penstock.Engine {self.name}>"

    # ── the same face as a client ──────────────────────────────────────────────────────────────

    @property
    def client(self) -> Client:
        """The owner's own client."""
        client = self._client
        if client is None:
            raise EngineClosed(f"the engine {self.name!r} is not running: use `with` or `start()`")
        process = self._process if self._pid == os.getpid() else None  # a child cannot poll it
        if process is not None and not client.connected:
            code = process.poll()
            if code is not None:
                raise EngineClosed(f"the engine {self.name!r} is gone: {launch.exit_text(code)}")
        return client

    def predict(self, x: Any, **options: Unpack[CallOptions]) -> Any:
        """See `Client.predict`."""
        return self.client.predict(x, **options)

    def submit(self, x: Any, **options: Unpack[CallOptions]) -> Answer:
        """See `Client.submit`."""
        return self.client.submit(x, **options)

    async def predict_async(self, x: Any, **options: Unpack[CallOptions]) -> Any:
        """See `Client.predict_async`."""
        return await self.client.predict_async(x, **options)

    def map(self, rows: Iterable[Any], **options: Unpack[StreamOptions]) -> Iterator[Any]:
        """See `Client.map`."""
        return self.client.map(rows, **options)

    def statistics(self, timeout: float = 10.0) -> Statistics:
        """See `Client.statistics`."""
        return self.client.statistics(timeout)

    def trace(self, seconds: float = 5.0, timeout: float = 60.0) -> Trace:
        """See `Client.trace`."""
        return self.client.trace(seconds, timeout)

    def models(self) -> tuple[str, ...]:
        """See `Client.models`."""
        return self.client.models()

    def model_info(self, model: str | None = None, rows: Any = None) -> ServedModel:
        """See `Client.model_info`."""
        return self.client.model_info(model, rows)


def _with_settings(models: Any, settings: dict[str, Any]) -> Any:
    if isinstance(models, (Model, dict, list, tuple)):
        raise ConfigError(
            f"{', '.join(settings)}: say it of each model, with penstock.Model(source, …)"
        )
    return Model(models, **settings)


def start_engine(
    models: tuple[Model, ...],
    config: EngineConfig,
    *,
    owner: int | None = None,
    log: Any = None,
) -> subprocess.Popen[bytes]:
    """Start an engine's process and wait until it is ready. Raises why it is not.

    `owner` is a pidfd; without one the engine stays until it is told to end.
    """
    with archived(models) as (models, archives):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        descriptors = {"status": writer} | ({} if owner is None else {"owner": owner}) | archives
        try:
            settings = to_json(models, config, sys_path=_import_path())
            process = launch.start("penstock.engine", settings, descriptors, detached=True, log=log)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
    try:
        _wait_ready(process, reader, config)
    except BaseException:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_LIMIT)
        if process.poll() is None:
            process.kill()
            process.wait()
        raise
    finally:
        os.close(reader)
    return process


def _import_path() -> list[str]:
    """Where this process finds modules, as workers should too."""
    return [str(Path(place).resolve()) if place else os.getcwd() for place in sys.path]


def _wait_ready(process: subprocess.Popen[bytes], reader: int, config: EngineConfig) -> None:
    """Its exit is watched, too: a child forked by another thread may hold the pipe's other end."""
    exited = os.pidfd_open(process.pid)
    try:
        _follow(process, reader, exited, config)
    finally:
        os.close(exited)


def _follow(
    process: subprocess.Popen[bytes], reader: int, exited: int, config: EngineConfig
) -> None:
    deadline = time.monotonic() + _LISTENING_LIMIT
    buffer = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(exited, select.POLLIN)
    while True:
        ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if not ready:
            raise EngineClosed(f"the engine {config.name!r} was not ready in time")
        chunk = os.read(reader, 65536) if reader in ready else b""
        if not chunk:
            code = process.wait(_EXIT_LIMIT)
            raise EngineClosed(
                f"the engine {config.name!r} ended while it was starting: {launch.exit_text(code)}"
            )
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            status = json.loads(line)
            if status["state"] == "ready":
                return
            if status["state"] == "listening":
                deadline = time.monotonic() + config.load_timeout + _LISTENING_LIMIT
            elif status["state"] == "failed":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_LIMIT)
                message, _, remote = status["text"].partition("\0")
                raise from_message(status["kind"], message, remote)
            elif status["state"] == "closing":
                raise EngineClosed(f"the engine {config.name!r} was told to end while it started")
