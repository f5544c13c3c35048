"""A view of an engine as lines of text, for a terminal of any width.

Tables leave out their less important columns where there is no room; lines are folded between
fields. Clients that are not listed are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from penstock.cli.quantities import duration, milliseconds, number, size
from penstock.cli.top.rates import ClientView, EngineView, ModelView, View, WorkerView
from penstock.statistics import Percentiles
from penstock.tracing.advice import percent

_LEVELS = "▁▂▃▄▅▆▇█"
_GAP = "  "
_INDENT = " " * 10


class Field(NamedTuple):
    """A piece of a line that is not broken."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column of a table; those of a higher `rank` are left out first."""

    title: str
    cells: list[str]
    rank: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        """Of its longest cell."""
        return max(map(len, (self.title, *self.cells)))

    def cell(self, at: int) -> str:
        """One of them, as wide as the column; the title is before the first."""
        text = self.title if at < 0 else self.cells[at]
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def view_text(view: View, width: int, most_clients: int) -> Group:
    """All of it, no line longer than `width`."""
    lines = [line for fields in _engine(view.engine) for line in folded(fields, width)]
    for model in view.models:
        lines.append(Text())
        lines += [line for fields in _model(model) for line in folded(fields, width)]
    lines += [Text(), *table(_workers(view.workers), width)]
    shown = view.clients[:most_clients]
    if shown:
        lines += [Text(), *table(_clients(shown), width)]
    rest = len(view.clients) - len(shown)
    if rest:
        lines.append(Text(f"and {rest} more client{'s' if rest > 1 else ''}"[:width], "dim"))
    elif not shown:
        lines += [Text(), Text("no client is connected"[:width], "dim")]
    return Group(*lines)


def height_without_clients(view: View, width: int) -> int:
    """How many lines there are beside those of the clients."""
    return len(view_text(view, width, 0).renderables) + 2


def folded(fields: list[Field], width: int) -> Iterator[Text]:
    """Fields one after the other, in as many lines as it takes; later ones are indented."""
    line = Text()
    for text, style in fields:
        room = width - len(line) - len(_GAP)
        if len(line) and len(text) > room:
            yield line
            line = Text(_INDENT)
        elif len(line):
            line.append(_GAP)
        line.append(text[: width - len(line)], style)
    yield line


# ── the engine and its models ──────────────────────────────────────────────────────────────────


def _engine(engine: EngineView) -> Iterator[list[Field]]:
    ready = engine.state == "ready"
    fields = [
        Field(engine.name, "bold"),
        Field(f"pid {engine.pid}"),
        Field(engine.state, "green" if ready else "yellow"),
    ]
    if ready:
        well = Field("healthy", "green"), Field("not healthy", "bold red")
        fields.append(well[not engine.healthy])
    fields.append(Field(f"up {duration(engine.uptime)}"))
    if engine.deaths:
        fields.append(Field(f"worker deaths {engine.deaths}, restarts {engine.restarts}", "red"))
    if engine.cpu is not None:
        fields.append(Field(f"CPU {percent(engine.cpu)}"))
    if engine.memory is not None:
        fields.append(Field(f"memory {size(engine.memory)}"))
    yield fields
    fields = [
        Field(f"{number(engine.requests)} requests/s"),
        Field(f"{engine.queued_rows:,} rows wait"),
    ]
    if engine.failed:
        fields.append(Field(f"{number(engine.failed)}/s failed", "red"))
    for why, rate in engine.refused.items():
        fields.append(Field(f"{number(rate)}/s refused ({why})", "red"))
    yield fields


def _model(model: ModelView) -> Iterator[list[Field]]:
    fields = [
        Field(model.name, "bold cyan"),
        Field(f"{number(model.rows)} rows/s"),
        Field(f"{number(model.batches)} batches/s"),
    ]
    if model.mean_batch is not None:
        fields.append(Field(f"mean batch {model.mean_batch:.1f} of {model.max_batch}"))
    fields.append(Field(f"{model.queued_rows:,} rows wait"))
    if model.padding:
        fields.append(Field(f"padding {percent(model.padding)}"))
    if model.mode:
        fields.append(Field(model.mode))
    yield fields
    if model.unbatched:
        yield [Field("  not batched:", "yellow"), Field(model.unbatched, "yellow")]
    if model.limits:
        limits = (f"{rows} on worker {index}" for index, rows in model.limits.items())
        yield [Field("  at most"), *map(Field, limits)]
    if model.sizes:
        yield [Field("  sizes "), *map(Field, bars(model.sizes, model.max_batch))]
    if model.closed:
        shares = (f"{reason} {percent(share)}" for reason, share in model.closed.items())
        yield [Field("  closed"), *map(Field, shares)]
    if any(times.p50 for times in model.times.values()):
        yield [
            Field("  times "),
            *(Field(f"{name} {_three(times)}") for name, times in model.times.items()),
            Field("ms (p50 / p90 / p99)", "dim"),
        ]


def _three(times: Percentiles) -> str:
    return " / ".join(milliseconds(seconds) for seconds in (times.p50, times.p90, times.p99))


def bars(sizes: Mapping[int, int], max_batch: int) -> Iterator[str]:
    """How many batches had which size, in steps of two: `1▁`, `2▃`, `4█`."""
    largest = max(max_batch, *sizes)
    tops = [1]
    while tops[-1] < largest:
        tops.append(min(2 * tops[-1], largest))
    counts = [0] * len(tops)
    for rows, count in sizes.items():
        counts[next(at for at, top in enumerate(tops) if rows <= top)] += count
    for top, count in zip(tops, counts, strict=True):
        yield f"{top}{_LEVELS[(count * 8 - 1) // max(counts)] if count else ' '}"


# ── tables ─────────────────────────────────────────────────────────────────────────────────────


def _workers(workers: Sequence[WorkerView]) -> list[Column]:
    return [
        Column("WORKER", [str(worker.index) for worker in workers]),
        Column("PID", [str(worker.pid or "–") for worker in workers], 3),
        Column("STATE", [worker.state for worker in workers], 0, left=True),
        Column("BUSY", [percent(worker.busy) for worker in workers]),
        Column("CPU", [_share(worker.cpu) for worker in workers], 1),
        Column("MEMORY", [_size(worker.memory) for worker in workers], 2),
        *_cards(workers),
        Column("ROWS/S", [number(worker.rows) for worker in workers]),
        Column("INFLIGHT", [str(worker.inflight) for worker in workers], 4),
        Column("STARTS", [str(worker.starts) for worker in workers], 5),
    ]


def _cards(workers: Sequence[WorkerView]) -> list[Column]:
    if all(worker.gpu is None and worker.gpu_memory is None for worker in workers):
        return []
    return [
        Column("DEVICE", [worker.device.partition(" ")[0] for worker in workers], 2, left=True),
        Column("GPU", [_share(worker.gpu) for worker in workers]),
        Column("HOLDS", [_size(worker.gpu_memory) for worker in workers], 1),
    ]


def _clients(clients: Sequence[ClientView]) -> list[Column]:
    return [
        Column("CLIENT", [str(client.number) for client in clients], 3),
        Column("PID", [str(client.pid) for client in clients]),
        Column("LABEL", [_label(client) for client in clients], 2, left=True),
        Column("WAITS FOR", [f"{client.outstanding:,}" for client in clients], 1),
        Column("ROWS/S", [number(client.rows) for client in clients]),
        Column("HOLDS", [size(client.bytes) for client in clients], 2),
    ]


def _label(client: ClientView) -> str:
    own = f"pid {client.pid}"
    return "–" if client.label in ("", own) else client.label[:32]


def table(columns: list[Column], width: int) -> Iterator[Text]:
    """As many of the columns as fit, the titles first."""
    while len(columns) > 1 and sum(c.width for c in columns) + 2 * (len(columns) - 1) > width:
        worst = max(range(len(columns)), key=lambda at: (columns[at].rank, at))
        columns = columns[:worst] + columns[worst + 1 :]
    for at in range(-1, len(columns[0].cells)):
        line = _GAP.join(column.cell(at) for column in columns)
        yield Text(line.rstrip()[:width], "dim" if at < 0 else "")


def _size(count: int | None) -> str:
    return "–" if count is None else size(count)


def _share(share: float | None) -> str:
    return "–" if share is None else percent(share)
