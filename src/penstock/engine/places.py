"""Where this engine's workers run: a device each, and on a GPU a share of its memory.

Before a worker starts, its share is taken from the ledger that all of a user's processes keep
(`penstock.devices`): what the settings say, or all that is left of the card. TensorFlow may take
all of it but for what is taken beside its limit (`beside`): compiled programs, each of which may
have the weights in it, and buffers that batches are gathered into. When everything
is loaded and warm, what was not needed is given back, by a thread: NVML and the ledger may take
their time, and the engine has none. Models that cannot fit are refused here, with the numbers,
before anything is started; with devices="auto" a card without room for them is left out, as long as
there is another.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from penstock.config import EngineConfig, Model
from penstock.devices import cards, ledger
from penstock.devices.cards import amount
from penstock.devices.choose import Placement, resolve
from penstock.devices.ledger import Share
from penstock.devices.plan import Need, beside, plan
from penstock.errors import DeviceMemoryError
from penstock.model.pace import MOST_BUFFERS
from penstock.model.plans import likely_need

_log = logging.getLogger(__name__)
_SPARE = 256 << 20  # bytes, and a tenth: what a worker may still take after it is warm


class Places:
    """One for each worker. Raises `ConfigError` or `DeviceMemoryError` for what cannot be."""

    def __init__(self, models: Sequence[Model], config: EngineConfig) -> None:
        self._automatic = not config.gpu_memory
        self._shares: list[Share | None] = []
        self._places: list[Placement] = []  # with what was left to TensorFlow at first
        self._settling = threading.Lock()
        chosen = resolve(config.devices, config.workers)
        any_will_do = config.devices == "auto" and not config.workers
        left_out: list[DeviceMemoryError] = []
        try:
            for number, place in enumerate(chosen):
                try:
                    self._add(place, models, config, chosen[number:].count(place))
                except DeviceMemoryError as error:
                    if not any_will_do:
                        raise
                    left_out.append(error)
                    _log.warning("%s is left out: %s", place.name, error)
            if not self._places:
                raise left_out[0]
        except BaseException:
            self.release()
            raise

    def _add(
        self, place: Placement, models: Sequence[Model], config: EngineConfig, sharing: int
    ) -> None:
        """One more, which is one of `sharing` on this card that have no share yet."""
        share = None
        if place.on_gpu:
            needs = {model.name: likely_need(model, place.device) for model in models}
            share = self._take(place, needs, config, sharing)
            programs, buffers, rows = beside(needs, share.promise.size, MOST_BUFFERS)
            memory = share.promise.size - programs - buffers
            told = json.dumps(rows) if len(models) > 1 else ""  # one alone reckons for itself
            place = replace(place, memory=memory, buffers=buffers, rows=told)
        self._shares.append(share)
        self._places.append(place)

    def __len__(self) -> int:
        return len(self._places)

    def label(self, index: int) -> str:
        """The worker's device, for people."""
        return self._places[index].name

    def on_gpu(self, index: int) -> bool:
        """Whether the worker's device is a card."""
        return self._places[index].on_gpu

    def environment(self, index: int, squeezed: int = 0) -> dict[str, str]:
        """What to set for the worker's process. `squeezed`: how often one in this place has run out
        of memory as it loaded.

        Once it was settled, its share is what its predecessor had taken, with programs and all, and
        a little more: another process gets as much, lest it have less than that one needed.
        """
        share, place = self._shares[index], self._places[index]
        if share is None:
            return place.environment(squeezed)
        memory = min(place.memory, share.promise.size)
        return replace(place, memory=memory).environment(squeezed)

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
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("worker %d keeps all that it was promised: %s", index, error)
            return None
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
        """What the settings say, or an equal part of what is left."""
        rooms = [room for room in ledger.rooms() if room.card.uuid == place.device]
        plan(needs, rooms, limit=config.gpu_memory).require()
        size = config.gpu_memory or (rooms[0].left // sharing if rooms and sharing > 1 else None)
        return ledger.take(size, f"engine {config.name}", card=place.device)
