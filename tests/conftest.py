"""What every test shares: folders of its own for engines' sockets and for the cache,
and hypothesis's manners."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# So that `tests.…` can be imported however pytest was started.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

_LONG = ("model", "train", "tuning")  # folders

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is found out about models is remembered here, and forgotten with the tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def startup() -> Iterator[None]:
    """Every Python that tests start runs `startup/sitecustomize.py` first; see there."""
    places = [str(Path(__file__).parent / "startup"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT interrupts tests and what they start, also when a shell runs them in the background:
    what it starts there ignores that signal, and so does all that is started from it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then the folders whose tests need TensorFlow: what is left
    to several processes at the end is short, and they end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent.name not in _LONG))


def pytest_collection_finish() -> None:
    """What was collected stays: a test that has garbage collected need not have it looked through,
    a tenth of a second each time.

    Tests that use TensorFlow start a process that does: with it in this one, others fail.
    """
    if "tensorflow" in sys.modules:
        raise pytest.UsageError("a file of tests imports TensorFlow when it is collected")
    gc.freeze()
