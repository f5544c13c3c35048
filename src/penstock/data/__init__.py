"""Sources, sinks and shards: data sets in, data sets out, and how they are cut. Knows no models.

- `chunk`, `source`: what every source gives (`Chunk`) and can do (`Source`)
- `opening`: `open_source`, which finds the right one for what people write (`formats`, `factories`)
- `arrays`, `raw`, `images`, `tables`, `commas`, `jsonlines`, `records`, `rows`, `tfdata`: the kinds
- `joined`: many files of one kind as one source; `listing`, `names`, `files`: which, and where
- `features`, `arrow`, `examples`, `lineindex`: from what a format holds to rows of arrays
- `sinks`, `tablesinks`, `textsinks`, `arraysink`, `recordsink`: the same ways out, part by part
- `atomic`: files that are there whole or not at all
- `shards`: who reads which rows

pyarrow, Pillow, fsspec and google-crc32c (the extra `data`) are imported where they are used;
TensorFlow only in `tfdata`.
"""

from penstock.data.chunk import Chunk, Failure
from penstock.data.opening import open_source
from penstock.data.sinks import Sink, open_sink
from penstock.data.source import Source, reopen

__all__ = ["Chunk", "Failure", "Sink", "Source", "open_sink", "open_source", "reopen"]
