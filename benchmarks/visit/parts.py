"""What a visit runs, in this order. Seconds are those of one H200 with 16 cores.

`expected` was measured where the comment says so, and is a guess where it does not. A part is begun
only where so much time is left. A benchmark is told its limit and ends in good order; a little
later it is ended by force. Parts of one benchmark have the same flags and add to the same results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_PYTEST = (
    *("-m", "pytest", "-o", "addopts=", "-o", "filterwarnings=default", "--import-mode=importlib"),
    *("-p", "no:cacheprovider", "-v", "-ra", "--durations=0", "-m", "gpu"),
)
_REHEARSED = 10.0


@dataclass(frozen=True)
class Part:
    """A command of this Python's, and its seconds."""

    name: str
    command: tuple[str, ...]
    expected: float
    limit: float
    takes_limit: bool = True

    def argv(self, limit: float) -> list[str]:
        """What follows Python's own name, for a run of at most so many seconds."""
        return [*self.command, *([f"--limit={limit:.0f}"] if self.takes_limit else [])]


def parts(out: Path, work: Path, rehearse: bool) -> list[Part]:
    """All of them."""
    flags = ("--rehearse",) if rehearse else ()
    look = ("-m", "benchmarks.visit.look", str(work), *flags)
    found = [Part("look", look, 15, 90, takes_limit=False), *_tests(rehearse)]
    found += _benchmarks(out, work, flags)
    if rehearse:
        found = [replace(part, expected=min(part.expected, _REHEARSED)) for part in found]
    return sorted(found, key=lambda part: _ORDER.index(part.name))


_ORDER = (
    *("look", "tests-order", "tests-claims", "tests-data", "tune", "limit", "loads", "tight"),
    *("ways", "offline", "train-rate", "tests-faults", "tests-tuning", "tests-function"),
    *("train-large", "soak", "train-remat"),
)


def _tests(rehearse: bool) -> Iterator[Part]:
    pretend = ("--pretend",) if rehearse else ()

    def tests(name: str, file: str, expected: float, limit: float) -> Part:
        command = (*_PYTEST, *pretend, f"tests/gpu/{file}")
        return Part(f"tests-{name}", command, expected, limit, takes_limit=False)

    yield tests("order", "test_order.py", 20, 120)
    yield tests("claims", "test_claims_on_the_gpu.py", 22, 100)
    yield tests("data", "test_data_path.py", 60, 240)
    yield tests("faults", "test_faults.py", 60, 300)
    yield tests("tuning", "test_tuning_on_the_gpu.py", 85, 300)
    yield tests("function", "test_function_on_the_gpu.py", 10, 60)


def _benchmarks(out: Path, work: Path, flags: tuple[str, ...]) -> Iterator[Part]:
    gpu = (
        *("-m", "benchmarks.gpu", f"--out={out / 'gpu'}", f"--work={work}", *flags),
        *("--sizes=1,256,384,512,768,1024", "--also=", "--tight-within=180"),
    )
    yield Part("tune", (*gpu, "--only=tune"), 150, 280)  # first: engines start from what it found
    yield Part("limit", (*gpu, "--only=limit"), 170, 380)  # 66 s with three cells; there are nine
    yield Part("loads", (*gpu, "--only=crowd,few,one,array"), 165, 340)  # measured: 163 s
    yield Part("tight", (*gpu, "--only=tight"), 190, 320)  # measured: 185 s
    yield Part("ways", (*gpu, "--only=ways"), 160, 300)
    yield Part("soak", (*gpu, "--only=soak"), 45, 130)  # measured: 41 s
    offline = ("-m", "benchmarks.offline.gpu", f"--out={out / 'offline-gpu'}", f"--work={work}")
    yield Part("offline", (*offline, *flags, "--rounds=1"), 200, 420)
    train = ("-m", "benchmarks.train", f"--out={out / 'train'}", "--quick", *flags)
    # 243 s with a fourth way, of which no goal tells, that was warm after 56 s.
    yield Part("train-rate", (*train, "--only=rate", "--ways=float32,same,auto"), 190, 420)
    yield Part("train-large", (*train, "--only=large"), 150, 330)
    yield Part("train-remat", (*train, "--only=remat"), 250, 420)
