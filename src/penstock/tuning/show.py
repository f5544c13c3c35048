"""A plan in a terminal: what was taken, every size with a bar, the modes, the reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from penstock.tuning.plan import Plan, Size

_BAR = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show(plan: Plan, console: Console) -> None:
    """Print it all."""
    precision = plan.precision or "the precision it was saved in"
    console.print(Text(f"{plan.model} on {plan.device}", "bold"))
    rows = "unbatched" if plan.unbatched else f"batches of up to {plan.max_batch} rows"
    _say(console, f"{plan.mode}, {precision}, {rows}.")
    if plan.sizes:
        console.print()
        for line in _table(plan):
            console.print(line)
    console.print()
    for label, text in _statements(plan):
        _say(console, f"{label}: {text}", "- ")


def _say(console: Console, text: str, begin: str = "") -> None:
    filled = textwrap.fill(
        text, console.width, initial_indent=begin, subsequent_indent=" " * len(begin)
    )
    console.print(Text(filled))


def _table(plan: Plan) -> Iterator[Text]:
    has_memory = any(size.memory for size in plan.sizes)
    memory = f"{'memory':>10}" if has_memory else ""
    yield Text(f"{'rows':>7}{'latency':>13}{'rows/s':>12}{memory}", "bold")
    most = max(size.rows_per_second for size in plan.sizes)
    for size in plan.sizes:
        line = Text(f"{size.rows:>7}{'' if size.measured else ' ≈':>2}")
        line.append(f"{size.latency * 1e3:>8.3g} ms{size.rows_per_second:>12,.0f}")
        if has_memory:
            line.append(f"{_amount(size.memory):>10}")
        line.append("  ")
        line.append(bar(size.rows_per_second / most), "cyan" if size.measured else "dim")
        line.append(f" {_mark(plan, size)}".rstrip(), "bold")
        yield line


def _mark(plan: Plan, size: Size) -> str:
    if size.rows == plan.max_batch:
        return "largest"
    return "ladder" if size.in_ladder else ""


def bar(share: float, width: int = _BAR) -> str:
    """A bar of that share of the width, to an eighth of a character."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip().ljust(width)


def _statements(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.unbatched:
        yield "rows are run as they come", plan.unbatched
    reasons = plan.reasons
    if "max_batch" in reasons and not plan.unbatched:
        yield f"largest batch {plan.max_batch}", reasons["max_batch"]
    if plan.ladder:
        sizes = ", ".join(map(str, plan.ladder))
        yield f"ladder {sizes}", reasons.get("ladder", "the settings say so, or the default")
    elif not plan.unbatched:
        yield "ladder", "none, a batch of any size is run as it is"
    for mode, told in plan.modes.items():
        yield _label(plan, mode), _times(told)
    if "precision" in reasons:
        yield f"precision {plan.precision}", reasons["precision"]
    for precision, told in plan.drift.items():
        yield f"drift of {precision}", _drift(told)
    if plan.memory:
        yield "memory", _memory(plan)
    for note in plan.notes:
        yield "note", note
    if any(not size.measured for size in plan.sizes):
        yield "≈", "not measured, but interpolated between sizes that were"
    known = "known from an earlier run, which took" if plan.cached else "measured in"
    yield "time", f"{known} {plan.seconds:.1f} s"


def _label(plan: Plan, mode: str) -> str:
    return f"mode {mode} (taken)" if mode == plan.mode else f"mode {mode}"


def _times(told: dict[str, int] | str) -> str:
    if isinstance(told, str):
        return told
    return ", ".join(f"{ns / 1e6:.3g} ms for {_rows(size)}" for size, ns in told.items())


def _drift(told: dict[str, Any]) -> str:
    if told["largest"] == "inf":
        return "answers that are infinite or no numbers"
    text = f"{told['largest']:.2g} at most, {told['mean']:.2g} on average of {told['rows']} rows"
    if told["same_class"] is not None:
        text += f", the same class in {100 * told['same_class']:.4g} % of them"
    return f"{text}; {told['nanoseconds'] / 1e6:.3g} ms for the largest batch"


def _memory(plan: Plan) -> str:
    memory = plan.memory
    text = (
        f"{_amount(plan.memory_needed)} at the largest batch: {_amount(memory['fixed'])} and "
        f"{memory['per_row'] / 2**20:.3g} MB a row"
    )
    return f"{text}; there are {_amount(memory['limit'])}" if memory["limit"] else text


def _rows(size: str) -> str:
    return "1 row" if size == "1" else f"{size} rows"


def _amount(count: int) -> str:
    value, unit = (count / 2**30, "GB") if count >= 2**30 else (count / 2**20, "MB")
    return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
