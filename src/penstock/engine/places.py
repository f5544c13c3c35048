"""Where this engine's workers run: a device each, and on a GPU a share of its memory.

Before a worker starts, its share is taken from the ledger that all of a user's processes keep
(`penstock.devices`): what the settings say, or all that is left of the card. TensorFlow may take
all of it but for what is taken beside its limit (`_beside`): compiled programs, each of which may
have the weights in it, and buffers that batches are gathered into. When everything
is loaded and warm, what was not needed is given back, by a thread: NVML and the ledger may take
their time, and the engine has none. Models that cannot fit are refused here, with the numbers,
before anything is started.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from penstock.config import EngineConfig, Model
from penstock.devices import cards, ledger
from penstock.devices.cards import amount
from penstock.devices.choose import Placement, resolve
from penstock.devices.ledger import Share
from penstock.devices.limit import OVERHEAD
from penstock.devices.plan import ROOM, Need, batches, estimate, plan
from penstock.model.pace import BATCH_BYTES, HANDS
from penstock.model.plans import known_need

_log = logging.getLogger(__name__)
_PROGRAMS = 8  # with the weights in them: as many as a ladder has sizes
_BUFFERS = HANDS * BATCH_BYTES  # of a model, at most
_SPARE = 256 << 20  # bytes, and a tenth: what a worker may still take after it is warm


class Places:
    """One for each worker. Raises `ConfigError` or `DeviceMemoryError` for what cannot be."""

    def __init__(self, models: Sequence[Model], config: EngineConfig) -> None:
        self._automatic = not config.gpu_memory
        self._places = resolve(config.devices, config.workers)
        self._shares: list[Share | None] = []
        self._first: list[Placement] = []  # with what was left to TensorFlow at first
        self._settling = threading.Lock()
        try:
            for number, place in enumerate(self._places):
                share = None
                if place.on_gpu:
                    needs = {model.name: _need(model, place.device) for model in models}
                    share = self._take(place, needs, config, self._places[number:].count(place))
                    programs, buffers = _beside(needs, share.promise.size)
                    memory = share.promise.size - programs - buffers
                    place = replace(place, memory=memory, buffers=buffers)
                self._shares.append(share)
                self._first.append(place)
        except BaseException:
            self.release()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def label(self, index: int) -> str:
        """The worker's device, for people."""
        return self._places[index].name

    def environment(self, index: int) -> dict[str, str]:
        """What to set for the worker's process.

        Once it was settled, its share is what its predecessor had taken, with programs and all, and
        a little more: another process gets as much, lest it have less than that one needed.
        """
        share, place = self._shares[index], self._first[index]
        if share is None:
            return place.environment()
        return replace(place, memory=min(place.memory, share.promise.size)).environment()

    def numbers(self, index: int) -> str:
        """The worker's share of its device, for an error; "" on a CPU."""
        share = self._shares[index]
        if share is None:
            return ""
        return f"it had {amount(share.promise.size)} of {self.label(index)}"

    def settle(self, index: int, pid: int, computes_there: bool) -> threading.Thread | None:
        """The worker has taken what it needs: give back the rest. Returns the thread that does it.

        `computes_there`: whether one of its models is known to. If none is, and NVML does not know
        the process, it has taken nothing.
        """
        share = self._shares[index]
        if share is None or not self._automatic:
            return None

        def beside() -> None:
            try:
                with self._settling:
                    self._give_back(index, share, pid, computes_there)
            except Exception as error:
                _log.warning(
                    "worker %d keeps all that it was promised of %s: %s: %s",
                    *(index, self.label(index), type(error).__name__, error),
                )

        thread = threading.Thread(target=beside, name="penstock-settling", daemon=True)
        thread.start()
        return thread

    def _give_back(self, index: int, share: Share, pid: int, computes_there: bool) -> None:
        taken = dict(
            use
            for card in cards.survey().cards
            if card.uuid == share.promise.card
            for use in card.processes
        ).get(pid)
        if taken is None and computes_there:
            return
        taken = taken or 0
        wanted = taken + taken // 10 + _SPARE
        share.change(size=min(wanted, share.promise.size), used=taken)
        _log.info("worker %d holds %s of %s", index, amount(taken), self.label(index))

    def release(self) -> None:
        """The workers are gone."""
        for share in self._shares:
            if share is not None:
                share.release()
        self._shares = [None] * len(self._places)

    def _take(
        self, place: Placement, needs: dict[str, Need], config: EngineConfig, sharing: int
    ) -> Share:
        """A share for a worker that is one of `sharing` on this card that have none yet."""
        rooms = [room for room in ledger.rooms() if room.card.uuid == place.device]
        plan(needs, rooms, limit=config.gpu_memory).require()
        size = config.gpu_memory or (rooms[0].left // sharing if rooms and sharing > 1 else None)
        return ledger.take(size, f"engine {config.name}", card=place.device)


def _beside(needs: dict[str, Need], size: int) -> tuple[int, int]:
    """Of a share of this size, what programs and what buffers take beside TensorFlow's limit.

    Of models that were measured it is known, at the largest batches that fit. For the others there
    is room for a ladder of programs and for large batches, but no more than the share bears: most
    of what their weights leave is TensorFlow's.
    """
    known = {name: need for name, need in needs.items() if need.measured}
    others = [need for need in needs.values() if not need.measured]
    weights = sum(need.weights for need in others)
    own = max(size - OVERHEAD, 0)
    spare = max(own - int(weights / ROOM), 0)
    programs = min(_PROGRAMS * weights, own // 4, spare // 3)
    buffers = min(len(others) * min(_BUFFERS, own // 8), spare // 4)
    rows = batches(known, size - programs - buffers)
    for name, need in known.items():
        gathered = need.buffers_per_row * rows[name]
        programs += need.beside(rows[name]) - gathered
        buffers += gathered
    return programs, buffers


def _need(model: Model, device: str) -> Need:
    """What was measured of a model on this card, else at least its weights."""
    known = known_need(model, device)
    if known.measured or not isinstance(model.source, str):
        return known
    return estimate(model.source)
