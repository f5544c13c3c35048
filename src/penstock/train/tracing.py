"""Functions of TensorFlow's that a run makes for itself.

Each is traced once, but TensorFlow counts by the code that they share, and after a few short runs
in one process it would warn of tracing again and again. A partial has no code: it is counted alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.model.runtime import tf


def traced(body: Callable[..., Any], **options: Any) -> Any:
    """A `tf.function` that is counted alone."""
    return tf.function(functools.partial(body), autograph=False, **options)
