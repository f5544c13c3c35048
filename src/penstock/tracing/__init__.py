"""What became of every request for a few seconds, from `Client.trace`.

- `record`: `Trace`, as the engine has written it down
- `summary`: where the time of requests and of workers went
- `advice`: which stage is the limit, in a sentence
- `timeline`: a file that Perfetto and chrome://tracing open
"""

from __future__ import annotations

from penstock.tracing.record import Load, Trace, TracedBatch, TracedRequest, trace_of

__all__ = ["Load", "Trace", "TracedBatch", "TracedRequest", "trace_of"]
