"""A client process of Penstock: single images, several outstanding, each a request of its own.

    python -m benchmarks.gpu.client ENDPOINT FOLDER NUMBER OUTSTANDING

The loop and the dialogue are those of `benchmarks.core.client`, with images in place of its rows.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.core.client import measure, serve_schedules
from benchmarks.core.penstock_exchange import PenstockExchange
from benchmarks.gpu.images import Pictures


def main() -> None:
    pictures: Any = Pictures(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    exchange = PenstockExchange(sys.argv[1], int(sys.argv[4]))
    run = partial(measure, exchange, pictures)
    serve_schedules(lambda schedule: [run(schedule)])
    exchange.close()


if __name__ == "__main__":
    main()
