"""Whether the machine has what the other parts need: packages, a card that all see, room.

    python -m benchmarks.visit.look WORK [--rehearse]

Ends with 1 where something is missing that all others need; what only some need is told. In a
rehearsal a card is not needed.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

_NEEDED = ("numpy", "rich", "psutil")
_ON_A_GPU = ("pynvml", "cuda.bindings.driver")
_OF_SOME = {
    "pytest": "tests",
    "hypothesis": "tests",
    "click": "tests-claims",
    "matplotlib": "pictures",
    "PIL": "offline",
    "pyarrow": "offline",
}
_DISK = 16 << 30  # 7.5 GB of images, as much of outputs and caches
_TENSORFLOW = """
import keras, tensorflow as tf
print(tf.__version__, keras.__version__, *tf.config.list_physical_devices("GPU"))
"""


def missing(work: Path, rehearse: bool) -> Iterator[str]:
    """What is missing that all need; tells what there is."""
    for name in (*_NEEDED, *(() if rehearse else _ON_A_GPU)):
        if not _imports(name):
            yield f"{name} cannot be imported"
    for name, part in _OF_SOME.items():
        if not _imports(name):
            print(f"NOTE: {name} cannot be imported, of which {part} will suffer", flush=True)
    print(f"Python {sys.version.split()[0]}, {len(os.sched_getaffinity(0))} cores", flush=True)
    for package in ("numpy", "pytest", "cuda-bindings", "nvidia-ml-py"):
        try:
            print(f"{package} {metadata.version(package)}", flush=True)
        except metadata.PackageNotFoundError:
            print(f"{package}: not known as a package", flush=True)
    work.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(work).free
    print(f"{free / 1e9:.0f} GB are free in {work}", flush=True)
    if free < _DISK:
        print(f"NOTE: offline needs {_DISK / 1e9:.0f} GB in {work}", flush=True)
    if not rehearse:
        yield from _card()
    done = subprocess.run([sys.executable, "-c", _TENSORFLOW], capture_output=True, text=True)
    print(f"TensorFlow and Keras: {done.stdout.strip()}", flush=True)
    if done.returncode:
        yield f"TensorFlow cannot be imported: {(done.stderr.strip().splitlines() or [''])[-1]}"
    elif "GPU" not in done.stdout and not rehearse:
        yield f"TensorFlow sees no GPU: {done.stderr.strip()[-1000:]}"


def _imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}", flush=True)
        return False
    return True


def _card() -> Iterator[str]:
    from penstock.devices import cards

    look = cards.survey()
    for card in look.cards:
        free, total = cards.amount(card.free), cards.amount(card.total)
        print(f"{card}: {free} of {total} free", flush=True)
    if not look.cards:
        yield f"no card: {look.reason or 'NVML tells of none'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.visit.look")
    parser.add_argument("work", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    found = list(missing(arguments.work, arguments.rehearse))
    for one in found:
        print(f"MISSING: {one}", flush=True)
    print("something is missing" if found else "all is there", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
