"""The process around the core: startup, main loop, shutdown; and the processes of its workers.

The main loop's `step` is all that the engine does: *receive* (the poller calls the handlers, which
hand messages to the core), *schedule* (`Core.step`), *reply* (sends happen at once; when a socket
does not take a message, that waits in its channel, and the core keeps what it owes to the client).
Nothing here blocks on a peer. The clients' sockets are in `connections`.

Ends when: the owner exits (its pidfd), a signal or a client's `Stop` asks for it (drained first),
or the models cannot be loaded.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import socket
import time

from penstock import launch
from penstock.config import EngineConfig, Model, to_json
from penstock.engine.allowance import Allowance
from penstock.engine.connections import Connections
from penstock.engine.core import Core
from penstock.engine.places import Places
from penstock.engine.poller import Poller
from penstock.engine.processes import WorkerProcess, reap_orphans
from penstock.engine.workers import WorkerState
from penstock.errors import Kind
from penstock.transport import messages as m
from penstock.transport import rendezvous, wire
from penstock.transport.channel import Channel, Closed, Flooded, Oversized, Stripped

_TICK = 1.0
_STOPPED_LIMIT = 1.0
_FLUSH_LIMIT = 1.0
_EXIT_LIMIT = 3.0
_STATES = ("loading", "ready", "failed", "closing")
_ENDING = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("penstock.engine")


class Server:
    """One engine process. Does the effects that its core asks for."""

    def __init__(
        self,
        models: tuple[Model, ...],
        config: EngineConfig,
        *,
        sys_path: list[str],
        archives: dict[str, int],
        owner: int | None,
        status: int | None,
    ) -> None:
        self._models = models
        self._config = config
        self._sys_path = sys_path
        self._archives = archives  # descriptors of models, for every worker to come
        self._owner = owner
        self._status = status
        self._places = Places(models, config)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._core = Core(
            models,
            config,
            self,
            os.getpid(),
            workers=len(self._places),
            descriptors=most // 2,
        )
        for worker in self._core.workers:
            worker.device = self._places.label(worker.index)
            worker.on_gpu = self._places.on_gpu(worker.index)
        self._poller = Poller()
        self._connections = Connections(self._core, self._poller, config.group, Allowance(most))
        self.to_client = self._connections.to_client  # effects, too; all answers go this way
        self.disconnect = self._connections.disconnect
        self._path = rendezvous.address_of(config.name, config.folder)
        self._processes: dict[int, WorkerProcess] = {}
        self._next_tick = 0.0
        self._told_state: tuple[int, int, str] = (-1, 0, "")
        self._pidfd = os.pidfd_open(os.getpid())
        self._signal_sockets: tuple[socket.socket, ...] = ()

    # ── startup, main loop, shutdown ───────────────────────────────────────────────────────────

    def run(self) -> int:
        """The engine's whole life; returns the process's exit code."""
        launch.adopt_orphans()
        rendezvous.prepare_folder(self._path.parent, self._config.group)
        lock = rendezvous.take_lock(self._path)
        try:
            listener = rendezvous.listen(self._path, self._config.group)
            with listener:
                self._connections.listen(listener)
                self._watch_signals()
                if self._owner is not None:
                    self._poller.add(self._owner, lambda _: self._owner_exited())
                self._tell("listening")
                log.info("listening at %s", self._path)
                self._core.start(time.monotonic_ns())
                self._tell_change()
                while not self._finished():
                    self._step()
                self._poller.remove(listener.fileno())
        finally:
            self._shutdown()
            rendezvous.release_lock(self._path, lock)
        return int(self._core.state[0] == m.STATE_FAILED)

    def _step(self) -> None:
        now = time.monotonic_ns()
        wakeup = self._core.wakeup(now)
        wait = _TICK if wakeup is None else min(_TICK, max(0, wakeup - now) / 1e9)
        self._poller.wait(wait)
        now = time.monotonic_ns()
        self._core.step(now)
        if self._connections.dropping:
            self._connections.sweep()
        if now >= self._next_tick:
            self._next_tick = now + _TICK * 1e9
            self._tick(now)
        self._tell_change()

    def _finished(self) -> bool:
        if self._core.state[0] in (m.STATE_READY, m.STATE_LOADING):
            return False
        if self._core.state[0] == m.STATE_FAILED:
            return not self._processes
        return self._core.drained(time.monotonic_ns())

    def _shutdown(self) -> None:
        self._core.end_all()
        deadline = time.monotonic() + _FLUSH_LIMIT
        while time.monotonic() < deadline and self._connections.unsent():
            self._poller.wait(0.05)
            self._connections.sweep()
        for process in self._processes.values():
            worker = self._core.workers[process.index]
            if worker.state is WorkerState.READY and not worker.batches:
                with contextlib.suppress(Closed, Flooded):
                    process.channel.send(wire.encode(m.Stop(0.0)))
            else:
                process.kill()  # it is loading or running something: it would not read that
        deadline = time.monotonic() + _EXIT_LIMIT
        while self._processes and time.monotonic() < deadline:
            self._poller.wait(0.05)
        for process in list(self._processes.values()):
            process.kill()
            self._reap(process)
        deadline = time.monotonic() + _EXIT_LIMIT
        while reap_orphans(set()) and time.monotonic() < deadline:
            time.sleep(0.005)
        self._connections.close()
        self._places.release()
        self._poller.close()
        signal.set_wakeup_fd(-1)
        for end in self._signal_sockets:
            end.close()
        log.info("ended")

    def _tick(self, now: int) -> None:
        self._connections.tick(now)
        for process in self._processes.values():
            if process.stopped_for() >= _STOPPED_LIMIT:
                worker = self._core.workers[process.index]
                self._core.health.kill(worker, "its process was stopped")
        reap_orphans({process.popen.pid for process in self._processes.values()})

    def _watch_signals(self) -> None:
        reader, writer = socket.socketpair()
        self._signal_sockets = (reader, writer)
        for end in self._signal_sockets:
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, lambda *_: None)
        self._poller.add(reader.fileno(), lambda _: self._signalled(reader))

    def _signalled(self, reader: socket.socket) -> None:
        for _ in filter(_ENDING.__contains__, reader.recv(64)):  # a byte a signal: its number
            again = self._core.drain_until is not None
            self._core.close(time.monotonic_ns(), 0.0 if again else self._config.drain_timeout)

    def _owner_exited(self) -> None:
        assert self._owner is not None
        self._poller.remove(self._owner)
        log.warning("the process that owns this engine has exited: ending")
        self._core.close(time.monotonic_ns(), 0.0)

    def _tell_change(self) -> None:
        if self._core.state is not self._told_state:
            self._told_state = self._core.state
            self._tell(_STATES[self._core.state[0]])

    def _tell(self, state: str) -> None:
        """Tell whoever started this process how far it is."""
        if self._status is None:
            return
        _, kind, text = self._core.state
        line = json.dumps({"state": state, "kind": kind, "text": text})
        with contextlib.suppress(OSError):
            os.write(self._status, line.encode() + b"\n")

    # ── workers ────────────────────────────────────────────────────────────────────────────────

    def _from_worker(self, process: WorkerProcess, drain: bool = False) -> None:
        if process.broken:
            return
        try:
            with contextlib.suppress(Closed):  # what it has sent before is still read
                if process.channel.wants_write and not process.channel.flush():
                    self._poller.watch_write(process.channel.fileno(), False)
            while (received := _receive(process.channel)) is not None:
                self._core.take_worker(process.index, *received, time.monotonic_ns())
                if not drain:
                    return  # there is seldom more; the poller calls again if there is
        except (Closed, Oversized, wire.Malformed) as error:
            process.broken = True
            self._poller.remove(process.channel.fileno())
            worker = self._core.workers[process.index]
            if isinstance(error, Closed):
                self._core.health.let_go(worker, time.monotonic_ns())
            else:
                self._core.health.kill(worker, str(error))

    def _worker_exited(self, process: WorkerProcess) -> None:
        self._from_worker(process, drain=True)
        how = self._reap(process)
        numbers = self._places.numbers(process.index)
        how = f"{how}; {numbers}" if numbers else how
        worker = self._core.workers[process.index]
        squeezed = worker.squeezed
        if worker.load_error and worker.load_error[0] == Kind.DEVICE_MEMORY and numbers:
            text, *traceback = worker.load_error[1].split("\0")
            told = "\0".join([f"{text}; {numbers}", *traceback])
            worker.load_error = (Kind.DEVICE_MEMORY, told)
        ending = worker.state is WorkerState.ENDING and not worker.kill_reason
        known = self._core.drain_until is not None or self._core.health.says_why(worker)
        log.log(
            logging.INFO if known else logging.WARNING,
            "worker %d ended: %s",
            process.index,
            how if ending else worker.kill_reason or how,
        )
        self._core.health.exited(worker, how, time.monotonic_ns())
        if worker.squeezed > squeezed:
            assert worker.load_error is not None
            why = worker.load_error[1]
            log.warning("worker %d begins anew, knowing what did not fit: %s", worker.index, why)

    def _reap(self, process: WorkerProcess) -> str:
        self._poller.remove(process.channel.fileno())
        self._poller.remove(process.pidfd)
        del self._processes[process.index]
        how = process.reap()
        reap_orphans({other.popen.pid for other in self._processes.values()})
        return how

    # ── the core's effects ─────────────────────────────────────────────────────────────────────

    def to_worker(self, worker: int, data: bytes, descriptor: int = -1) -> None:
        """Send to a worker; one that cannot be reached is about to be seen exiting."""
        process = self._processes.get(worker)
        if process is None or process.broken:
            return
        with contextlib.suppress(Closed):
            try:
                process.channel.send(data, (descriptor,) if descriptor >= 0 else ())
            except Flooded as error:
                log.warning("worker %d is killed: %s", worker, error)
                process.broken = True  # the core sees its exit: just now it may be dispatching
                self._poller.remove(process.channel.fileno())
                process.kill()
                return
            if process.channel.wants_write:
                self._poller.watch_write(process.channel.fileno(), True)

    def start_worker(self, index: int) -> int:
        """Start a process for this worker. Raises `OSError`."""
        settings = to_json(
            self._models,
            self._config,
            index=index,
            sys_path=self._sys_path,
            socket=str(self._path),
        )
        try:
            process = WorkerProcess(
                index,
                settings,
                {"engine": self._pidfd} | self._archives,
                self._places.environment(index, self._core.workers[index].squeezed),
            )
            self._processes[index] = process
            try:
                self._poller.add(process.channel.fileno(), lambda _: self._from_worker(process))
                self._poller.add(process.pidfd, lambda _: self._worker_exited(process))
            except OSError:
                process.kill()
                self._reap(process)
                raise
        except OSError as error:
            log.warning("worker %d cannot be started: %s", index, error)
            raise
        return process.popen.pid

    def kill_worker(self, index: int) -> None:
        """Kill this worker's process; its pidfd tells when it is gone."""
        process = self._processes.get(index)
        if process is not None:
            process.kill()

    def warm(self, index: int) -> None:
        """A worker has all that it needs of its device."""
        told = self._core.workers[index].means.values()
        on_gpu = any(means.facts.get("device") == "GPU" for means in told)
        self._places.settle(index, self._processes[index].popen.pid, on_gpu)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)


def _receive(channel: Channel) -> tuple[bytes, list[int]] | None:
    """What a worker says. An answer that came in a segment for which this process has no descriptor
    left is lost; the worker is not to blame, and others of its answers are not lost with it."""
    try:
        return channel.receive()
    except Stripped as error:
        record = wire.decode(error.data)
        if not isinstance(record, m.ItemPart):
            raise
        text = f"the answer is lost, the engine cannot take it just now: {error}"
        failed = m.ItemFailed(*record[:4], Kind.OVERLOADED, text)
        return wire.encode(failed), []
