"""Who gets which rows of a global batch: first by worker, then by micro-batch, then by replica.

    rows 0 … 9, 2 workers, 1 micro-batch, 2 replicas
    worker 0: [0 1 2] [3 4]     worker 1: [5 6 7] [8 9]

Parts are as even as whole rows allow; where some are longer by one, they come first. Every row is
in one part. A part may be empty: its replica takes part with no rows.
"""

from __future__ import annotations

Span = tuple[int, int]  # from row, up to but without row


def split(rows: Span, parts: int) -> list[Span]:
    """A span in so many parts, in order."""
    start, stop = rows
    size, longer = divmod(stop - start, parts)
    spans = []
    for part in range(parts):
        end = start + size + (part < longer)
        spans.append((start, end))
        start = end
    return spans


def portion(rows: int, size: int, own: Span) -> Span:
    """What is somebody's of a shorter batch, who has `own` of one of `size` rows."""
    return rows * own[0] // size, rows * own[1] // size


def pieces(rows: Span, micros: int, replicas: int) -> list[Span]:
    """What one worker's replicas get of its rows, in the order step → micro-batch → replica."""
    return [span for micro in split(rows, micros) for span in split(micro, replicas)]


def cut(rows: int, workers: int, micros: int, replicas: int) -> list[list[Span]]:
    """All pieces of a global batch, for each worker."""
    return [pieces(part, micros, replicas) for part in split((0, rows), workers)]
