"""Which systems a run measures: ours, its peers, one that shows the driver's limit, and none."""

from benchmarks.core.systems.http_peers import BARE, LITSERVE, MOSEC
from benchmarks.core.systems.interface import System
from benchmarks.core.systems.mp_queue import MpQueue
from benchmarks.core.systems.nothing import Nothing
from benchmarks.core.systems.penstock_engine import PenstockEngine

PENSTOCK = PenstockEngine()
PEERS: list[System] = [MpQueue(), MOSEC, LITSERVE]
SYSTEMS: list[System] = [PENSTOCK, *PEERS]
DRIVER_LIMIT: System = BARE
NOTHING: System = Nothing()
