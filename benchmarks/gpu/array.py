"""A client process of Penstock with one large array.

    python -m benchmarks.gpu.array ENDPOINT FOLDER ROWS

It speaks JSON lines. Out, once the array is made: {"ready": true}. In: {"rows": n}. Out: the
seconds that `predict` took for the first n images; their answers were checked after that.
"""

import json
import sys
import time
from pathlib import Path

import penstock
from benchmarks.core.client import say
from benchmarks.gpu.images import Pictures


def main() -> None:
    pictures = Pictures(Path(sys.argv[2]), number=0)
    array, right = pictures.repeated(int(sys.argv[3]))
    with penstock.connect(sys.argv[1], wait=60) as client:
        say({"ready": True})
        for line in sys.stdin:
            rows = json.loads(line)["rows"]
            began = time.monotonic()
            answers = client.predict(array[:rows])
            seconds = time.monotonic() - began
            for start in range(0, rows, len(right)):
                some = answers[start : start + len(right)]
                pictures.check_batch(some, right[: len(some)])
            say({"seconds": seconds})


if __name__ == "__main__":
    main()
