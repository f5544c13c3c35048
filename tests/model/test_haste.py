"""TensorFlow is imported without a look for garbage; afterwards there are looks again."""

from __future__ import annotations

import gc
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
hasten()
print(sys.meta_path == before)
"""


def test_python_looks_for_garbage_again_afterwards(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(_FAKE)
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], cwd=tmp_path, capture_output=True, text=True, timeout=40
    )
    assert done.stdout.split() == ["False", "True", "True", "True"], done.stderr


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
