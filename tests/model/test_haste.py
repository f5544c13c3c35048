"""TensorFlow is imported without a look for garbage; then there are looks again, but not at it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.haste import without_collecting

# A module of that name, which tells whether garbage would be looked for while it is imported.
_FAKE = "import gc\nduring = gc.isenabled()\n"
_PROBE = """
import gc, sys
from penstock.model.haste import hasten
before = list(sys.meta_path)
hasten()
import tensorflow
print(tensorflow.during, gc.isenabled(), sys.meta_path == before)
print(gc.get_freeze_count() > 0, any(each is tensorflow for each in gc.get_objects()))
hasten()
print(sys.meta_path == before)
"""


def test_python_looks_for_garbage_again_afterwards(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(_FAKE)
    ours, _, others = os.environ["PYTHONPATH"].partition(os.pathsep)
    assert ours.endswith("startup")  # which does the same in tests' processes
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": others},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.stdout.split() == ["False", "True", "True", "True", "False", "True"], done.stderr


def test_also_after_an_error_and_not_where_the_user_has_turned_it_off() -> None:
    with pytest.raises(ImportError), without_collecting():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collecting():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
