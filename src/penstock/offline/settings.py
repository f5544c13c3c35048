"""What can be said about a job, beside its model, its engine and its source. Loads no numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.config import source_text
from penstock.errors import ConfigError

WAYS = ("contiguous", "strided", "balanced", "stratified", "dynamic")
_WITHIN = "dynamic"  # what a job does with its own parts, in any case


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class JobSettings:
    """How a job is run.

    `inputs`, `outputs` and `keep` are names, or one text with commas between them.
    """

    inputs: str | tuple[str, ...] = _setting(
        "", "columns that the model gets (default: those it asks for)"
    )
    outputs: str | tuple[str, ...] = _setting("", "outputs that are written (default: all)")
    keep: str | tuple[str, ...] = _setting(
        "", "columns of the input that are written beside the outputs"
    )
    map: str | Callable[..., Any] = _setting(  # noqa: RUF009
        "", "a Python function (module:function) from outputs to what is written"
    )
    shard: str = _setting("", "only one shard of several, for example 3/8; then `penstock merge`")
    shards: str = _setting("contiguous", f"how shards are cut: {', '.join(WAYS)}")
    cost: str = _setting("", "the column by which shards are balanced (default: sizes of files)")
    label: str = _setting("", "the column by which shards are stratified")
    seed: int = _setting(0, "which of equal rows go to which shard")
    max_errors: int = _setting(1000, "rows that may fail before the job stops (-1: any number)")
    chunk: int = _setting(
        0, "rows of work that a crash may cost, for each loader (0: by their size)"
    )
    loaders: int = _setting(0, "the most processes that decode (0: as many as there are cores)")
    restart: bool = _setting(False, "whether to begin anew, and forget what was done before")
    work: str = _setting("", "a local folder for what is done so far (default: beside the output)")

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "keep"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        object.__setattr__(self, "map", source_text(self.map) if self.map else "")
        if self.shards not in WAYS:
            raise ConfigError(f"shards: expected one of {', '.join(WAYS)}; got {self.shards!r}")
        if self.shards == _WITHIN and self.shard:
            raise ConfigError(
                f"shards: dynamic is within one job, where parts go to whoever is free; expected "
                f"one of {', '.join(WAYS[:-1])} for shard {self.shard}"
            )
        assert self.place is None or self.shard  # it says what is wrong with it
        for name, least in (("max_errors", -1), ("chunk", 0), ("loaders", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name}: expected a whole number from {least} on, got {value!r}")

    @property
    def place(self) -> tuple[int, int] | None:
        """The shard as (index from 0, count); `None` for all rows."""
        if not self.shard:
            return None
        from penstock.data.shards import parse_shard

        return parse_shard(self.shard)

    def identity(self) -> dict[str, Any]:
        """What decides over the result, less which shard it is: the same for all of them."""
        count = 1 if self.place is None else self.place[1]
        sharded = self.place is not None
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "keep": list(self.keep),
            "map": self.map,
            "chunk": self.chunk,
            "shards": [count, self.shards, self.cost, self.label, self.seed] if sharded else [],
        }


def _names(option: str, value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{option}: expected names with commas between them, got {value!r}")
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
