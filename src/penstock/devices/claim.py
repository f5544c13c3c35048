"""A share of a card for a process of the user's own: `penstock.claim_gpu("4G")`.

Called before TensorFlow is imported. It takes a share from the `ledger`, makes this process see
that card alone, and has TensorFlow limited as soon as it is imported (`limit`).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from penstock.config import parse_bytes
from penstock.devices import cards as found
from penstock.devices import ledger, limit
from penstock.devices.cards import Card, amount
from penstock.devices.choose import card_named, environment, no_card
from penstock.errors import ConfigError, DeviceMemoryError

_LEAST = limit.OVERHEAD + (64 << 20)
_PAUSE = 0.2  # seconds between two looks while waiting
_claiming = threading.Lock()
_current: list[Claim] = []


def _forget_in_child() -> None:
    global _claiming
    _claiming = threading.Lock()  # a thread of the parent's may wait for room just now
    _current.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class Claim:
    """A share of `card`, of `bytes` bytes, until `release`, the end of its `with`, or of the
    process.

    Released, others may be promised the memory again; what TensorFlow has taken in this process it
    keeps until the process ends.
    """

    def __init__(self, card: Card, share: ledger.Share, before: Mapping[str, str | None]) -> None:
        self.card = card
        self.bytes = share.promise.size
        self._share = share
        self._before = before

    @property
    def held(self) -> bool:
        """Whether this process has it: not once released, nor in a child that was forked."""
        return self._share.descriptor >= 0

    def release(self) -> None:
        """Give it back. May be called again."""
        self._share.release()
        if self in _current:
            _current.remove(self)
            if "tensorflow" not in sys.modules:
                limit.forget()
                _set(self._before)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Claim: {amount(self.bytes)} of {self.card}>"


def claim_gpu(size: str | int, wait: float | None = None, device: str | None = None) -> Claim:
    """Reserve GPU memory for this process and keep TensorFlow to it. Call before importing it.

    `size` is what the process may take in all, such as `"4G"`; TensorFlow's own limit is some
    700 MB less, which CUDA and its libraries take. `device` is `"gpu:0"` (the first on the PCI
    bus) or a UUID; else the card with the most room is taken. Where there is no room, waits up to
    `wait` seconds, then raises `DeviceMemoryError` with the numbers. In a process that
    `penstock run` has started, its share is the claim. Raises `ConfigError` when there is no such
    card, when TensorFlow has started its GPUs already, or when this process has a claim.

    Returns a `Claim`: `release` it, use it in a `with`, or let the process end.
    """
    wanted = share_size(size)
    with _claiming:
        for claim in _current:
            if claim.held:
                raise ConfigError(f"this process has {claim!r} already; release that first")
        given = ledger.inherited()
        share = given or take(wanted, own_purpose(), wait, device)
        try:
            if share.promise.size < wanted:
                raise ConfigError(
                    f"{amount(wanted)} were asked for in a process that was started with a share "
                    f"of {amount(share.promise.size)}; give it more: penstock run --gpu-memory"
                )
            card = _card(share)
            before = _set(environment(card.uuid, share.promise.size))
            claim = Claim(card, share, before)
            try:
                limit.limit_tensorflow(share.promise.size)
            except RuntimeError as error:
                _set(before)
                raise ConfigError(
                    f"TensorFlow has started its GPUs in this process already ({error}): "
                    "claim_gpu comes before that, best before `import tensorflow`"
                ) from error
        except BaseException:
            if given is None:
                share.release()
            raise
        _current.append(claim)
        atexit.register(claim.release)
        return claim


def share_size(size: str | int) -> int:
    """So many bytes, if that is enough for TensorFlow at all."""
    wanted = parse_bytes(size)
    if wanted < _LEAST:
        raise ConfigError(
            f"a share of a GPU is at least {amount(_LEAST)}, got {amount(wanted)}: "
            f"CUDA's context and libraries take about {amount(limit.OVERHEAD)} of it"
        )
    return wanted


def take(size: int, purpose: str, wait: float | None, device: str | None) -> ledger.Share:
    """A share of a card with room, now or within `wait` seconds."""
    if wait is not None and not wait >= 0:
        raise ConfigError(f"wait: expected seconds, 0 or more; got {wait!r}")
    until = time.monotonic() + (wait or 0.0)
    look = found.survey()
    seen = found.visible(look.cards, os.environ)
    if not seen:
        raise ConfigError(f"no GPU memory to claim: {no_card(look)}")
    chosen = [card_named(device, look, seen)] if device else seen
    uuid = chosen[0].uuid if device else ""
    hopeless = size > max(card.total for card in chosen)
    while True:
        try:
            return ledger.take(size, purpose, card=uuid)
        except DeviceMemoryError:
            left = until - time.monotonic()
            if left <= 0 or hopeless:
                raise
        time.sleep(min(_PAUSE, left))


def own_purpose() -> str:
    """What this process is, for others to read."""
    return " ".join(part for part in sys.argv if part)[:80] or "python"


def _card(share: ledger.Share) -> Card:
    look = found.survey()
    return card_named(share.promise.card, look, look.cards)


def _set(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Change the environment; returns what undoes that."""
    before = {name: os.environ.get(name) for name in changes}
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before
