"""A process that fills the card with memory of its own, up to what shall be left free.

    python -m benchmarks.gpu.filler

It speaks JSON lines. In: {"leave": bytes}, each time less than before. Out: {"free": bytes}. It
uses the driver alone (libcuda), so that nothing else of a framework's is on the card.
"""

import ctypes
import json
import sys
import time

from benchmarks.core.client import say

_GRAIN = 2 << 20  # the driver hands out memory in pieces of this size
_SETTLES = 0.3


class Card:
    """The first GPU, through the driver's own calls."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def take(self, size: int) -> None:
        """Memory that is given back when this process ends."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))

    def leave(self, wanted: int) -> int:
        """Take until no more than this is free, and stays so; what is free then."""
        while (free := self.free_bytes()) - wanted >= _GRAIN:
            self.take((free - wanted) // _GRAIN * _GRAIN)
            time.sleep(_SETTLES)  # one that has just ended may still give something back
        return free

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with CUDA error {code}")


def main() -> None:
    card = Card()
    for line in sys.stdin:
        say({"free": card.leave(json.loads(line)["leave"])})


if __name__ == "__main__":
    main()
