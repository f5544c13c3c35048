"""What every test shares: a folder of its own for engines' sockets, and hypothesis's manners."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# So that `tests.…` can be imported however pytest was started.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

settings.register_profile(
    "penstock",
    deadline=None,  # the machine is shared: how long one example takes says nothing
    max_examples=60,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


@pytest.fixture(scope="session", autouse=True)
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Engines that tests start are found here, never among the user's own."""
    folder = tmp_path_factory.mktemp("engines") / "sockets"
    before = os.environ.get("PENSTOCK_DIR")
    os.environ["PENSTOCK_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PENSTOCK_DIR"]
    else:
        os.environ["PENSTOCK_DIR"] = before
