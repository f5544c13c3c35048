"""Files of tests, all at the same time: a card has room for several engines that grow as they need.

    python -m benchmarks.visit.suites FILE... [-- FLAGS OF PYTEST...]

Each file's output is told as a whole when it is over. Ends with 1 where one of them failed. Not for
tests that look at how much of the card is taken in all.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import IO

_PYTEST = ("-m", "pytest", "-o", "addopts=", "-o", "filterwarnings=default")
_PYTEST += ("--import-mode=importlib", "-p", "no:cacheprovider", "-v", "-ra", "--durations=0")


def start(file: str, flags: list[str], said: IO[str]) -> subprocess.Popen[str]:
    """Begin a file of tests; what it says goes into another."""
    return subprocess.Popen(
        [sys.executable, *_PYTEST, *flags, file],
        # TensorFlow would take all that is left of the card at once, where it is not told.
        env=os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main() -> int:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    files, flags = words[:at], words[at + 1 :]
    failed = []
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in files]
        started = [start(file, flags, said) for file, said in zip(files, kept, strict=True)]
        for file, process, said in zip(files, started, kept, strict=True):
            status = process.wait()
            said.seek(0)
            print(said.read(), flush=True)
            if status:
                failed.append(file)
    print(f"failed: {', '.join(failed)}" if failed else f"{len(files)} files passed", flush=True)
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
