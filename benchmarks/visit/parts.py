"""What a visit runs, in this order. Seconds are those of one H200 with 16 cores.

`expected` was measured where the comment says so, and is a guess where it does not. A part is begun
only where so much time is left. A benchmark is told its limit and ends in good order; a little
later it is ended by force. Parts of one benchmark have the same flags and add to the same results.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_SUITES = ("order", "data_path", "faults", "tuning_on_the_gpu", "function_on_the_gpu")
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


# What waits for its first good figure comes early: the last parts do not fit into half an hour.
_ORDER = (
    *("look", "tune", "limit", "loads", "npy", "tight", "train-rate", "train-large"),
    *("train-remat", "mps", "tests", "tests-claims", "ways", "jpeg", "soak"),
)


def _tests(rehearse: bool) -> Iterator[Part]:
    """Those that look at the card as a whole run alone."""
    flags = ("--", "-m", "gpu", *(("--pretend",) if rehearse else ()))

    def tests(name: str, files: Sequence[str], expected: float, limit: float) -> Part:
        paths = [f"tests/gpu/test_{file}.py" for file in files]
        command = ("-m", "benchmarks.visit.suites", *paths, *flags)
        return Part(name, command, expected, limit, takes_limit=False)

    yield tests("tests", _SUITES, 90, 300)  # measured
    yield tests("tests-claims", ["claims_on_the_gpu"], 22, 100)  # measured


def _benchmarks(out: Path, work: Path, flags: tuple[str, ...]) -> Iterator[Part]:
    gpu = (
        *("-m", "benchmarks.gpu", f"--out={out / 'gpu'}", f"--work={work}", *flags),
        *("--sizes=1,256,384,512,768,1024", "--also=", "--tight-within=180"),
    )
    # First, and with the network's making: engines start from what it found. All five: measured.
    yield Part("tune", (*gpu, "--only=tune"), 145, 280)
    yield Part("limit", (*gpu, "--only=limit"), 160, 380)
    yield Part("loads", (*gpu, "--only=crowd,few,one,array"), 125, 340)
    yield Part("tight", (*gpu, "--only=tight"), 150, 320)
    yield Part("ways", (*gpu, "--only=ways"), 105, 300)
    yield Part("soak", (*gpu, "--only=soak"), 45, 130)  # measured: 41 s
    if not flags:  # a rehearsal has no card to share
        yield Part("mps", (*gpu, "--only=mps", "--rounds=1"), 135, 330)
    offline = ("-m", "benchmarks.offline.gpu", f"--work={work}", *(flags or ("--sizes=512,1024",)))
    # Both in one took 145 s.
    yield Part("npy", (*offline, f"--out={out / 'npy-gpu'}", "--data=npy"), 90, 300)
    yield Part(
        "jpeg", (*offline, f"--out={out / 'jpeg-gpu'}", "--data=jpeg", "--rounds=1"), 90, 300
    )
    train = ("-m", "benchmarks.train", f"--out={out / 'train'}", "--quick", *flags)
    # 243 s with another fourth way, and turns of a third of the steps.
    yield Part("train-rate", (*train, "--only=rate", "--ways=float32,same,auto"), 250, 420)
    yield Part("train-large", (*train, "--only=large"), 150, 330)
    yield Part("train-remat", (*train, "--only=remat"), 250, 420)
