"""The demo's figures as bars and sentences. Every figure comes from the measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from penstock.cli.demo.comparison import Agreement, Comparison, Way

_BAR = 32
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LABEL = 24


class Figure(NamedTuple):
    """A quantity that both ways have."""

    title: str
    value: Callable[[Way], float]
    form: Callable[[float], str]


FIGURES = (
    Figure("answers a second", lambda way: way.answers_per_second, "{:,.0f}".format),
    Figure("latency, median", lambda way: way.p50_ms, "{:.1f} ms".format),
    Figure("latency, 99th percentile", lambda way: way.p99_ms, "{:.1f} ms".format),
    Figure("start, until each has an answer", lambda way: way.start_seconds, "{:.1f} s".format),
    Figure("memory, all processes", lambda way: way.memory_bytes / 2**20, "{:,.0f} MB".format),
)


def show(comparison: Comparison, console: Console) -> None:
    """Print it all."""
    work, machine = comparison.work, comparison.machine
    console.print(
        f"{work['processes']} processes ask a dense network in numpy ({work['weights'] / 1e6:.0f} "
        f"million weights, {work['weight_bytes'] / 2**20:.0f} MB) for one image at a time, "
        f"{work['seconds']:g} s each way, on {machine['cores']} cores.",
        highlight=False,
    )
    for figure in FIGURES:
        console.print()
        console.print(Text(figure.title, style="bold"))
        for line in _bars(figure, comparison.ways):
            console.print(line)
    console.print()
    for sentence in sentences(comparison):
        console.print(sentence, highlight=False)


def _bars(figure: Figure, ways: tuple[Way, ...]) -> Iterator[Text]:
    values = [figure.value(way) for way in ways]
    longest = max(values) or 1.0
    for way, value, style in zip(ways, values, ("yellow", "cyan"), strict=True):
        line = Text(f"  {way.name:<{_LABEL}}")
        line.append(bar(value / longest), style)
        line.append(f" {figure.form(value)}")
        yield line


def bar(share: float, width: int = _BAR) -> str:
    """A bar of that share of the width, to an eighth of a character."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip().ljust(width)


def sentences(comparison: Comparison) -> Iterator[str]:
    """What the figures say, whichever way they point."""
    own, shared = comparison.ways
    faster = shared.answers_per_second / own.answers_per_second
    smaller = own.memory_bytes / shared.memory_bytes
    sooner = own.start_seconds / shared.start_seconds
    if faster >= 1.05:
        yield (
            f"Through Penstock the processes got {faster:.1f} × the answers: their requests were "
            f"run {shared.mean_batch:.1f} at a time, so the weights were read once for all of them."
        )
    elif faster > 0.95:
        yield "Both ways gave about as many answers."
    else:
        yield (
            f"Penstock gave fewer answers here ({faster:.2f} ×): its one worker ran "
            f"{shared.mean_batch:.1f} images at a time with {shared.blas_threads} of "
            f"{comparison.machine['cores']} cores, where copies of their own could use them all."
        )
    yield (
        f"Memory: {_times(smaller, 'less', 'more')}. Start: {_times(sooner, 'faster', 'slower')}."
    )
    yield _about(comparison.agreement)


def _times(factor: float, better: str, worse: str) -> str:
    return f"{factor:.1f} × {better}" if factor >= 1 else f"{1 / factor:.1f} × {worse}"


def _about(agreement: Agreement) -> str:
    verdict = "agree" if agreement.good else "DO NOT AGREE"
    return (
        f"The answers {verdict}: {agreement.same_class} of {agreement.compared} images in the same "
        f"class, largest difference of a score {agreement.largest_difference:.1e}."
    )
