"""One way in a process of its own: `python -m benchmarks.offline.way WAY FOLDER DATA ROWS`."""

import os
import sys
from pathlib import Path

from benchmarks.core.client import say


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    name, folder, data, rows = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if name == "limit":
        from benchmarks.offline.limit import limit

        result = limit(folder, rows)
        assert "penstock" not in sys.modules
    else:
        from benchmarks.offline.ways import WAYS

        result = WAYS[name](folder, data, rows)
    say(result)


if __name__ == "__main__":
    main()
