"""A client process of Penstock: single images, several outstanding, each a request of its own.

    python -m benchmarks.models.client ENDPOINT FOLDER NUMBER OUTSTANDING

The loop is that of `benchmarks.core`, with images in place of its rows; so is the dialogue.
"""

import sys
from pathlib import Path

from benchmarks.core.client import measure, serve_schedules
from benchmarks.core.penstock_exchange import PenstockExchange
from benchmarks.models.images import Images


def main() -> None:
    endpoint, folder, number, outstanding = sys.argv[1:]
    images = Images(Path(folder), int(number), int(outstanding))
    exchange = PenstockExchange(endpoint, int(outstanding))
    serve_schedules(
        lambda schedule: [measure(exchange, images, schedule)]  # type: ignore[arg-type]
    )
    exchange.close()


if __name__ == "__main__":
    main()
