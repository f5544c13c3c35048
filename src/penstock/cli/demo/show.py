"""The demo's figures as bars and sentences. Every figure comes from the measurement."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from penstock.cli.demo.records import Comparison, Sharing, Way
from penstock.cli.quantities import milliseconds, number, size

_BAR = 32
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LABEL = 26
_VALUE = 8  # characters that a figure may take, behind its bar
_STYLES = ("yellow", "magenta", "cyan")
_FEW = 100  # fewer answers have no 99th percentile
_ALIKE = 0.05


class Figure(NamedTuple):
    """A quantity that every way has."""

    title: str
    value: Callable[[Way], float]
    form: Callable[[float], str]


FIGURES = (
    Figure("answers a second", lambda way: way.answers_per_second, number),
    Figure("latency, median", lambda way: way.p50_ms / 1e3, lambda s: f"{milliseconds(s)} ms"),
    Figure(
        "latency, 99th percentile", lambda way: way.p99_ms / 1e3, lambda s: f"{milliseconds(s)} ms"
    ),
    Figure("start, until each has an answer", lambda way: way.start_seconds, "{:.1f} s".format),
    Figure("memory, all processes", lambda way: way.memory_bytes, lambda b: size(int(b))),
)


def show(comparison: Comparison, console: Console) -> None:
    """Print it all."""
    for paragraph in _introduction(comparison):
        console.print(textwrap.fill(paragraph, console.width), highlight=False)
    for figure in FIGURES:
        console.print()
        console.print(Text(figure.title, style="bold"))
        for line in _bars(figure, comparison.ways, console.width):
            console.print(line)
    console.print()
    for sentence in sentences(comparison):
        item = textwrap.fill(sentence, console.width, initial_indent="- ", subsequent_indent="  ")
        console.print(item, highlight=False)


def _introduction(comparison: Comparison) -> Iterator[str]:
    network, work, machine = comparison.network, comparison.work, comparison.machine
    yield (
        f"A convolutional network of {network.weights:,} weights was trained for {network.epochs} "
        f"epochs on {network.trained_on:,} handwritten digits; of {network.held_out} others it "
        f"classifies {100 * network.accuracy:.1f} % correctly."
    )
    yield (
        f"{_processes(work.processes)} asked it for one image at a time, each with "
        f"{work.outstanding_per_process} request outstanding, {work.seconds:g} s each way, on "
        f"{machine.cores} cores. TensorFlow's threads were left at its defaults."
    )
    if work.note:
        yield f"{work.note}."


def _bars(figure: Figure, ways: tuple[Way, ...], room: int) -> Iterator[Text]:
    values = [figure.value(way) for way in ways]
    longest = max(values) or 1.0
    width = max(min(_BAR, room - 2 - _LABEL - 1 - _VALUE), 1)
    for way, value, style in zip(ways, values, _STYLES, strict=True):
        line = Text(f"  {way.name:<{_LABEL}}")
        line.append(bar(value / longest, width), style)
        line.append(f" {figure.form(value)}")
        yield line


def bar(share: float, width: int = _BAR) -> str:
    """A bar of that share of the width, to an eighth of a character."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip().ljust(width)


def sentences(comparison: Comparison) -> Iterator[str]:
    """What the figures say, whichever way they point."""
    predict, compiled, shared = comparison.ways
    yield (
        f"Answers through Penstock: {_as_many(shared, predict)} as with model.predict, "
        f"{_as_many(shared, compiled)} as with compiled functions."
    )
    yield _about_batches(comparison.sharing, shared.answers_per_second, compiled)
    yield _about_copies(predict, compiled, shared)
    sharing = comparison.sharing
    yield (
        f"This was a first start, with an empty cache: its worker took "
        f"{sharing.load_seconds:.1f} s to load TensorFlow and the network, and to measure how best "
        f"to compile it ({sharing.mode}). Later starts remember that."
    )
    yield _about_answers(comparison)
    for way in comparison.ways:
        if way.answers < _FEW:
            yield (
                f"{way.name}: {way.answers} answers are few, so the 99th percentile means "
                "little (see --seconds)."
            )


def _about_batches(sharing: Sharing, rate: float, compiled: Way) -> str:
    text = f"Its worker ran {sharing.mean_batch:.1f} images at a time"
    times = sharing.milliseconds_by_batch
    larger = min((n for n in times if n >= sharing.mean_batch and n > 1), default=0)
    if 1 in times and larger:
        text += f": one alone takes it {times[1]:.2f} ms, {larger} together {times[larger]:.2f} ms"
    if rate < (1 - _ALIKE) * compiled.answers_per_second:
        text += (
            ". For a network this small, that saves less than the trip to another process and "
            "back costs"
        )
    return text + "."


def _about_copies(predict: Way, compiled: Way, shared: Way) -> str:
    own = compiled.with_tensorflow
    sooner = min(predict.start_seconds, compiled.start_seconds) / shared.start_seconds
    smaller = min(predict.memory_bytes, compiled.memory_bytes) / shared.memory_bytes
    return (
        f"Processes that ask Penstock need no TensorFlow: {shared.with_tensorflow} of its "
        f"{_processes(shared.processes)} had loaded it, {own} of {compiled.processes} with copies "
        f"of their own. Compared with the better of those two ways, its first answers came "
        f"{_times(sooner, 'sooner', 'later')}, and it took "
        f"{_times(smaller, 'less', 'more')} memory."
    )


def _about_answers(comparison: Comparison) -> str:
    compared = sum(way.agreement.compared for way in comparison.ways)
    same = sum(way.agreement.same_class for way in comparison.ways)
    largest = max(way.agreement.largest_difference for way in comparison.ways)
    verdict = "agree" if comparison.agree else "DO NOT AGREE"
    return (
        f"The answers {verdict} with the network's own where it was trained: {same:,} of "
        f"{compared:,} name the same class, and probabilities differ by {largest:.1e} at most "
        f"({comparison.work.tolerance:g} is allowed)."
    )


def _as_many(way: Way, other: Way) -> str:
    factor = way.answers_per_second / other.answers_per_second
    if abs(factor - 1) <= _ALIKE:
        return "about as many"
    return f"{factor:.{0 if factor >= 10 else 1 if factor >= 1 else 2}f} × as many"


def _times(factor: float, better: str, worse: str) -> str:
    return f"{factor:.1f} × {better}" if factor >= 1 else f"{1 / factor:.1f} × {worse}"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
