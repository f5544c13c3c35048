"""Where the time of training goes: data, compute, all-reduce, optimizer, idle; and what to try.

`Profiler.watch` is called before each step. Some steps after the first ones it has TensorFlow
trace a few: that is the profile that TensorBoard shows. The same file is read here for a summary
of our own, `summary.json` and `summary.txt` beside it.

Every instant of the traced steps counts once, for the first of these that goes on in it:

    compute     kernels of forward and backward (with no GPU: operations on CPUs)
    optimizer   the same, under the optimizer's name
    all-reduce  what is added up between replicas while nothing is computed
    data        somebody waits for the next batch, or it is copied to the device
    idle        none of these

With XLA on CPUs a compiled step is one operation: its optimizer counts as compute.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Interval = tuple[float, float]

KINDS = ("compute", "optimizer", "all-reduce", "data", "idle")
_FIRST, _STEPS = 12, 6
_NOTABLE = 0.15
_MARK = "train"  # the name that TensorBoard looks for

_TRY = {
    "compute": (
        'precision="mixed_float16" (or "mixed_bfloat16")',
        "jit=True",
        "a larger batch_size; more devices",
    ),
    "optimizer": (
        "a larger batch_size, or accumulate=n: fewer changes of the weights",
        "jit=True: one kernel in place of several for each weight",
    ),
    "all-reduce": (
        "accumulate=n: one all-reduce for n micro-batches",
        "a larger batch_size",
        'reduce="nccl" on GPUs; a larger pack_bytes where there are many small weights',
    ),
    "data": (
        "map(…, num_parallel_calls=tf.data.AUTOTUNE), cache(), prefetch(tf.data.AUTOTUNE)",
        "bytes as they are, scaled in the model: a quarter of what float32 takes",
        "fewer, larger files; shards on a disk of this machine",
    ),
    "idle": (
        "jit=True: fewer kernels to start",
        "a larger batch_size: more work for each kernel",
        "callbacks that look at a metric at every batch wait for the device: fewer of them",
    ),
}

_OPERATION = re.compile(r"^[^:]+:(\w+)$")
_CONTAINERS = re.compile(r"^(Stateless)?(While|If|Case)$|PartitionedCall$|^(_Recv|_Send|NoOp)")
_WAITING = re.compile(r"GetNext")
_ADDING_UP = re.compile(r"nccl|all-?reduce|collective(reduce|gather|broadcast)", re.IGNORECASE)
_COPIED_IN = re.compile(r"memcpy.?h(ost)?to?d", re.IGNORECASE)


@dataclass(frozen=True)
class Summary:
    """Shares of the time of some steps, which add up to 1."""

    steps: int
    step_ms: float
    shares: dict[str, float]
    limit: str
    tries: tuple[str, ...]

    @staticmethod
    def of(shares: Mapping[str, float], steps: int, seconds: float) -> Summary:
        """With what limits: the largest thing beside compute, if it is notable at all."""
        beside = max((kind for kind in KINDS if kind != "compute"), key=lambda kind: shares[kind])
        limit = beside if shares[beside] >= _NOTABLE else "compute"
        each = 1000 * seconds / max(steps, 1)
        return Summary(steps, round(each, 3), dict(shares), limit, _TRY[limit])

    def to_json(self) -> dict[str, Any]:
        """Of plain values."""
        return asdict(self) | {"tries": list(self.tries)}

    def text(self) -> str:
        """For people."""
        shares = ", ".join(f"{kind} {self.shares[kind]:.0%}" for kind in KINDS)
        tries = "".join(f"\n  - {one}" for one in self.tries)
        return (
            f"{self.steps} steps of {self.step_ms:.1f} ms: {shares}\n"
            f"What limits is {self.limit}. To try:{tries}"
        )


class Profiler:
    """Traces some steps of a run into a folder. `watch` before each step; `close` at the end."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        optimizer: str = "",
        *,
        first: int = _FIRST,
        steps: int = _STEPS,
    ) -> None:
        self._folder, self._optimizer = Path(folder), optimizer
        self._first, self._wanted = first, steps
        self._begun: int | None = None
        self._seen = 0
        self._traced = 0
        self._mark: Any = None
        self.summary: Summary | None = None

    def watch(self, step: int) -> None:
        """A step is about to be taken. `first` counts from the first one that was seen."""
        if self.summary is not None:
            return
        if self._begun is None:
            self._begun = step
        self._seen += 1
        if step - self._begun < self._first:
            return
        if self._traced == self._wanted:
            self.close()
            return
        if self._traced == 0:
            self._start()
        self._next(step)

    def close(self) -> None:
        """End the trace, and sum it up. Warns where there is none."""
        if self.summary is not None:
            return
        if not self._traced:
            warnings.warn(
                f"no profile was written to {self._folder}: the first {self._first} steps are "
                f"left out, and there were {self._seen}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        from penstock.model.runtime import tf

        tf.test.experimental.sync_devices()
        self._mark.__exit__(None, None, None)
        tf.profiler.experimental.stop()
        self.summary = summed_up(self._folder, self._optimizer)
        if self.summary is not None:
            (self._folder / "summary.json").write_text(json.dumps(self.summary.to_json()) + "\n")
            (self._folder / "summary.txt").write_text(self.summary.text() + "\n")

    def _start(self) -> None:
        from penstock.model.runtime import tf

        self._folder.mkdir(parents=True, exist_ok=True)
        tf.test.experimental.sync_devices()
        tf.profiler.experimental.start(str(self._folder))

    def _next(self, step: int) -> None:
        from penstock.model.runtime import tf

        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        self._mark = tf.profiler.experimental.Trace(_MARK, step_num=step, _r=1)
        self._mark.__enter__()
        self._traced += 1


def summed_up(folder: Path, optimizer: str = "") -> Summary | None:
    """The newest profile of a folder; None where there is none that can be read."""
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        return None
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(files[-1].read_bytes())
    marks, going = _read(space, optimizer)
    if not marks:
        return None
    window = (min(start for start, _ in marks), max(end for _, end in marks))
    return Summary.of(shares_of(going, window), len(marks), (window[1] - window[0]) / 1e12)


def shares_of(going: Mapping[str, Sequence[Interval]], window: Interval) -> dict[str, float]:
    """Each instant for the first kind, in the order of `KINDS`, that goes on in it."""
    start, end = window
    whole = end - start
    covered: list[Interval] = []
    shares, before = {}, 0.0
    for kind in KINDS[:-1]:
        cut = [(max(a, start), min(b, end)) for a, b in going.get(kind, ())]
        covered = _united([*covered, *((a, b) for a, b in cut if a < b)])
        total = sum(b - a for a, b in covered)
        shares[kind] = round((total - before) / whole, 4) if whole else 0.0
        before = total
    return shares | {"idle": round(1.0 - sum(shares.values()), 4)}


def _united(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _read(space: Any, optimizer: str) -> tuple[list[Interval], dict[str, list[Interval]]]:
    """The marks of the steps, and what went on when."""
    marks: list[Interval] = []
    going: dict[str, list[Interval]] = {kind: [] for kind in KINDS}
    cards = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    for plane in space.planes:
        on_card = bool(cards) and plane is cards[0]
        if not on_card and plane.name != "/host:CPU":
            continue
        for line, name, words, interval in _events(plane):
            if name == _MARK and not on_card:
                marks.append(interval)
            elif on_card:
                if line.startswith("Stream"):
                    going[_of_kernel(f"{name} {words}", optimizer)].append(interval)
            elif kind := _of_operation(name, optimizer, bool(cards) or _is_pipeline(line)):
                going[kind].append(interval)
    return marks, going


def _events(plane: Any) -> Iterator[tuple[str, str, str, Interval]]:
    """Of a plane: line, name, all words beside it, and when it began and ended (ps)."""
    texts = {}
    for number, about in plane.event_metadata.items():
        texts[number] = _words(plane, about.stats)
    for line in plane.lines:
        for event in line.events:
            start = 1000.0 * line.timestamp_ns + event.offset_ps
            words = f"{texts[event.metadata_id]} {_words(plane, event.stats)}"
            name = plane.event_metadata[event.metadata_id].name
            yield line.name, name, words, (start, start + event.duration_ps)


def _words(plane: Any, stats: Any) -> str:
    found = (one.str_value or plane.stat_metadata[one.ref_value].name for one in stats)
    return " ".join(word for word in found if word)


def _of_kernel(text: str, optimizer: str) -> str:
    if _ADDING_UP.search(text):
        return "all-reduce"
    if _COPIED_IN.search(text):
        return "data"
    return "optimizer" if _is_optimizer(text, optimizer) else "compute"


def _of_operation(name: str, optimizer: str, no_step: bool) -> str | None:
    """What an event of the host tells; beside a GPU, only whether somebody waits for data."""
    if _WAITING.search(name):
        return "data"
    found = _OPERATION.match(name)
    if no_step or found is None or _CONTAINERS.search(found.group(1)):
        return None
    if _ADDING_UP.search(found.group(1)):
        return "all-reduce"
    return "optimizer" if _is_optimizer(name, optimizer) else "compute"


def _is_pipeline(line: str) -> bool:
    """Whether its thread makes batches: what it computes is no part of a step."""
    return line.startswith("tf_data")


def _is_optimizer(text: str, optimizer: str) -> bool:
    return bool(optimizer) and re.search(rf"(^|[/ ]){re.escape(optimizer)}/", text) is not None
