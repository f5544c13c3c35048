"""What a process holds, as the kernel counts it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """Resident memory in bytes: all of it, and with shared pages divided among their users."""

    rss: int
    pss: int


def held_by(pid: int) -> Held:
    """The memory of a process of the same user."""
    amounts: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, kilobytes, *_ = line.split()
        amounts[name] = int(kilobytes) * 1024
    return Held(rss=amounts["Rss:"], pss=amounts["Pss:"])
