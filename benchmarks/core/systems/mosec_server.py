"""The Mosec server: raw bytes in, raw bytes out, dynamic batching.

python -m benchmarks.core.systems.mosec_server SETTINGS PORT
"""

import json
import os
import sys
from typing import Any

import numpy as np
from mosec import Server, Worker

from benchmarks.core.processes import end_with_input
from benchmarks.core.work import answer


class SumWorker(Worker):
    """Stacks the rows of a batch and answers them with one call."""

    resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8)

    def forward(self, data: Any) -> Any:
        """Mosec hands over a list of rows, or one row where batches are of one."""
        if self.max_batch_size == 1:
            return answer(data[np.newaxis])[0]
        return list(answer(np.stack(data)))

    def serialize(self, data: np.ndarray) -> bytes:
        return data.tobytes()


def main() -> None:
    end_with_input()
    settings, port = json.loads(sys.argv[1]), sys.argv[2]
    os.environ.update(MOSEC_ADDRESS="127.0.0.1", MOSEC_PORT=port, MOSEC_LOG_LEVEL="error")
    server = Server()
    server.append_worker(
        SumWorker,
        num=settings["workers"],
        max_batch_size=settings["max_batch"],
        max_wait_time=settings["max_wait_ms"],
    )
    server.run()


if __name__ == "__main__":
    main()
