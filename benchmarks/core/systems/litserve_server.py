"""The LitServe server: raw bytes in, raw bytes out, batched.

    python -m benchmarks.core.systems.litserve_server SETTINGS PORT

Left alone, LitServe parses every body as JSON. A dependency of FastAPI hands it the raw body.
"""

import json
import sys
from typing import Annotated

import litserve
import numpy as np
from fastapi import Depends, Request, Response

from benchmarks.core.processes import end_with_input
from benchmarks.core.work import answer


async def raw_body(request: Request) -> bytes:
    return await request.body()


class SumApi(litserve.LitAPI):
    """Answers the stacked rows of a batch with one call."""

    def decode_request(self, request: Annotated[bytes, Depends(raw_body)]) -> np.ndarray:
        return np.frombuffer(request, np.uint8)

    def predict(self, x: np.ndarray) -> np.ndarray:
        if x.ndim == 1:
            return answer(x[np.newaxis])[0]
        return answer(x)

    def encode_response(self, output: np.ndarray) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


def main() -> None:
    end_with_input()
    settings, port = json.loads(sys.argv[1]), int(sys.argv[2])
    api = SumApi(max_batch_size=settings["max_batch"], batch_timeout=settings["batch_timeout_s"])
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=settings["workers"],
        fast_queue=settings["fast_queue"],
    )
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=settings["api_servers"],
        log_level="error",
        access_log=False,
        generate_client_file=False,
    )


if __name__ == "__main__":
    main()
