"""The part `mps`: one worker on the card, and two, where CUDA's multi-process service shares it.

The service's daemon is started for this part alone, with a folder of its own; without its program
the part fails and says so. What the service itself costs is told by the parts `crowd` and `few` of
the same run, which are the same loads with one worker and no service.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.core.processes import ChildFailed
from benchmarks.gpu import loads
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row

_CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_WITHIN = 20.0


def run(bench: Bench) -> Iterator[Row]:
    """Two rows for each of: one worker, two workers."""
    with _service(bench):
        for workers in (1, 2):
            yield from _loads(bench, f"MPS, {workers} worker{'s' * (workers > 1)}", workers)


def _loads(bench: Bench, how: str, workers: int) -> Iterator[Row]:
    bench.end_engine()
    one = replace(bench, settings=bench.settings | {"workers": workers})
    try:
        for load in (loads.crowd, loads.few):
            row = load(one)
            yield from (replace(found, title=f"{how}: {found.title}") for found in row)
    finally:
        one.end_engine()


@contextlib.contextmanager
def _service(bench: Bench) -> Iterator[None]:
    control = shutil.which(_CONTROL)
    if control is None:
        raise ChildFailed(f"there is no {_CONTROL} here")
    folder = bench.place.folder / "mps"
    folder.mkdir(exist_ok=True)
    os.environ |= {_PIPES: str(folder), _LOGS: str(folder)}  # for it, and for all to come
    try:
        done = subprocess.run(
            [control, "-d"], capture_output=True, text=True, timeout=_WITHIN, check=False
        )
        if done.returncode:
            raise ChildFailed(f"{_CONTROL} does not start: {(done.stderr or done.stdout).strip()}")
        yield
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [control], input="quit\n", capture_output=True, text=True, timeout=_WITHIN
            )
        for name in (_PIPES, _LOGS):
            os.environ.pop(name, None)
