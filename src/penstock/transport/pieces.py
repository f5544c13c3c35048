"""How many rows travel together: a large call is cut into pieces, each a request of its own."""

from __future__ import annotations

PIECE_BYTES = 128 << 20


def piece_rows(
    max_batch: int, row_bytes: int, *, request_rows: int = 0, most: int = PIECE_BYTES
) -> int:
    """The rows of a piece of `most` bytes or fewer, so that pieces fill batches if that can be.

    `request_rows`: those that every worker can run at once, where some have less memory.
    """
    fitting = most // row_bytes if row_bytes else max_batch
    least = -(-max_batch // max(1, min(request_rows or max_batch, fitting)))
    even = (count for count in range(least, 2 * least) if max_batch % count == 0)
    return max_batch // next(even, least)
