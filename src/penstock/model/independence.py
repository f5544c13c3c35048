"""Whether a model's rows are independent of each other, found out by trying.

A row must get the same answer alone, among other rows and beside copies of itself (that is how
batches are padded). Where it does not, requests must not be put together: a batch norm that was
left in training mode, a softmax over the wrong axis, a mean over the batch.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.agreement import difference
from penstock.model.samples import Samples
from penstock.model.shortage import is_out_of_memory
from penstock.transport.tensors import Array


def dependence(
    run: Callable[[list[Array]], list[Array]],
    samples: Samples,
    tolerance: float,
    together: int = 4,
) -> str:
    """Why rows are not independent, or "". `samples` has two different rows at least.

    They are tried `together`, two at least. Raises what the device's memory is too small for.
    """
    order = [row % samples.different for row in range(together)]
    among = run(samples.chosen(order))
    others = run(samples.chosen(order[::-1]))
    for row in (0, 1):
        try:
            alone = run(samples.chosen([row]))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"it does not run on a single row ({type(error).__name__}: {error})"[:500]
        padded = run(samples.chosen([row] * together))
        for company, outputs, at in (
            ("other rows", among, row),
            ("other rows", others, together - 1 - row),
            ("copies of itself", padded, 0),
        ):
            if any(output.ndim == 0 or len(output) != together for output in outputs):
                return "it does not return one row for each that it gets"
            why = difference([output[at : at + 1] for output in outputs], alone, tolerance)
            if why:
                return f"a row's answer is another one among {company}: {why}"
    return ""
