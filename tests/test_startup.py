"""What every Python that tests start runs first: see `startup/sitecustomize.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TRY = """
try:
    import matplotlib.pyplot, sklearn
    found = True
except ImportError as error:
    found = error.name
"""


def test_some_packages_are_hidden_from_keras_and_from_nobody_else(tmp_path: Path) -> None:
    for package in ("matplotlib", "keras", "keras/src"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in ("matplotlib/pyplot", "sklearn"):
        (tmp_path / f"{module}.py").touch()
    for module in ("keras/src/plots", "kerasive"):
        (tmp_path / f"{module}.py").write_text(_TRY)
    probe = "import importlib, keras.src.plots, kerasive\nprint(keras.src.plots.found)\n"
    probe += "print(kerasive.found, importlib.import_module('sklearn').__name__)\n"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, timeout=40
    )
    assert done.stdout.split() == ["matplotlib", "True", "sklearn"], done.stderr
