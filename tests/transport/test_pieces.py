"""How large calls are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.transport.pieces import PIECE_BYTES, piece_rows


@given(
    st.integers(1, 4096), st.integers(0, 1 << 30), st.integers(0, 4096), st.integers(1, PIECE_BYTES)
)
def test_a_piece_is_no_larger_than_it_may_be(
    max_batch: int, row_bytes: int, request_rows: int, most: int
) -> None:
    rows = piece_rows(max_batch, row_bytes, request_rows=request_rows, most=most)
    assert 1 <= rows <= max_batch
    assert rows == 1 or rows * row_bytes <= most
    assert rows <= (request_rows or max_batch)


def test_pieces_fill_batches_where_that_can_be() -> None:
    image = 224 * 224 * 3
    assert piece_rows(1024, image) == 512
    assert piece_rows(256, image) == 256
    assert piece_rows(1800, image) == 600
    assert piece_rows(1024, 12) == 1024
    assert piece_rows(1024, image, request_rows=100) == 64
    assert piece_rows(7, PIECE_BYTES // 3) == 2  # 7 is no multiple of 2 or 3
