"""Whether two answers of a model are the same, up to what rounding does to them.

Floating point numbers agree when they differ by at most `tolerance` times their own size plus the
average size of the output they are in: sums are made in another order when a model is compiled in
another way or runs in other company, and that error grows with what is summed. Everything else must
be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.transport.tensors import Array

TOLERANCE = 1e-3
COARSE_TOLERANCE = 2e-2  # half precision, and GPUs, which multiply with 10 bits (TensorFloat-32)


def difference(got: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> str:
    """Why these outputs do not agree with those, or ""."""
    if len(got) != len(wanted):
        return f"{len(got)} outputs in place of {len(wanted)}"
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        label = f"output {index}" if len(wanted) > 1 else "the output"
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return (
                f"{label} is {ours.dtype} {list(ours.shape)} in place of "
                f"{theirs.dtype} {list(theirs.shape)}"
            )
        why = _unlike(ours, theirs, tolerance)
        if why:
            return f"{label} {why}"
    return ""


def _unlike(ours: Array, theirs: Array, tolerance: float) -> str:
    if theirs.dtype.kind in "biuSUO":
        unequal = int(np.count_nonzero(ours != theirs))
        return f"differs in {unequal} of {theirs.size} elements" if unequal else ""
    off = shares_off(ours, theirs)
    if off.size == 0 or off.max() <= tolerance:
        return ""
    if off.max() == np.inf:
        return "has other infinities or NaNs"
    worst = np.unravel_index(off.argmax(), off.shape)
    wide = complex if theirs.dtype.kind == "c" else float
    return (
        f"differs by a share of {off[worst]:.2g}, more than {tolerance:g} "
        f"({wide(ours[worst]):.6g} in place of {wide(theirs[worst]):.6g})"
    )


def shares_off(ours: Array, theirs: Array) -> Array:
    """How far off each number is, as a share; infinite where only one of them is a number."""
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    finite = np.isfinite(b)
    size = np.abs(np.where(finite, b, 0))
    mean = size.sum() / max(int(np.count_nonzero(finite)), 1)
    with np.errstate(invalid="ignore"):
        off = np.abs(a - b) / (size + mean + np.finfo(np.float64).tiny)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    result: Array = np.where(alike, 0.0, np.where(finite & np.isfinite(a), off, np.inf))
    return result
