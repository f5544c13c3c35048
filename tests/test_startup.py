"""What every Python that tests start runs first: see `startup/sitecustomize.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_HIDDEN = ("IPython", "matplotlib.pyplot", "sklearn")
_TRY = "missing = []\n" + "".join(
    f"try:\n    import {name}\nexcept ImportError as error:\n    missing.append(error.name)\n"
    for name in _HIDDEN
)


def printed(folder: Path, probe: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=folder, capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_some_packages_are_hidden_from_keras_and_from_nobody_else(tmp_path: Path) -> None:
    for package in ("matplotlib", "keras", "keras/src"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in ("matplotlib/pyplot", "sklearn", "IPython"):
        (tmp_path / f"{module}.py").touch()
    for module in ("keras/src/plots", "kerasive"):
        (tmp_path / f"{module}.py").write_text(_TRY)
    probe = "import importlib, keras.src.plots, kerasive\nprint(*keras.src.plots.missing)\n"
    probe += "print(kerasive.missing, importlib.import_module('sklearn').__name__)\n"
    assert printed(tmp_path, probe) == ["IPython matplotlib sklearn", "[] sklearn"]


def test_garbage_is_looked_for_but_not_in_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import gc\nduring = gc.isenabled()\n")
    probe = "import gc, tensorflow\nprint(tensorflow.during, gc.isenabled())\n"
    probe += "print(any(each is tensorflow for each in gc.get_objects()))\n"
    assert printed(tmp_path, probe) == ["False True", "False"]
    assert printed(tmp_path, f"import gc\ngc.disable()\n{probe}") == ["False False", "False"]
