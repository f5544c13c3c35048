"""From a source's text to the object that it names, or to a good reason why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.model.load import load
from penstock.model.source import resolve


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "made_for_source_test.py"
    path.write_text(
        "import beside_it\n"
        "def double(x):\n    return x * beside_it.TWO\n"
        "class Outer:\n    @staticmethod\n    def inner(x):\n        return x\n"
        "number = 3\n"
    )
    (tmp_path / "beside_it.py").write_text("TWO = 2\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path  # type: ignore[misc]
    for name in ("made_for_source_test", "beside_it"):
        sys.modules.pop(name, None)


def test_a_function_in_a_file_with_modules_beside_it(file: Path) -> None:
    assert resolve(f"{file}:double")(4) == 8
    assert resolve(f"{file}:Outer.inner")(4) == 4


def test_modules_of_one_name_beside_two_models_are_refused(file: Path, tmp_path: Path) -> None:
    """The second would silently run with the first one's."""
    resolve(f"{file}:double")
    other = tmp_path / "other"
    other.mkdir()
    (other / "made_for_source_test.py").write_text("def triple(x):\n    return x * 3\n")
    assert resolve(f"{other}/made_for_source_test.py:triple")(4) == 12
    (other / "beside_it.py").write_text("TWO = 3\n")
    with pytest.raises(ModelLoadError, match="each have a module 'beside_it'"):
        resolve(f"{other}/made_for_source_test.py:triple")
    assert resolve(f"{file}:double")(4) == 8


def test_a_function_in_a_module() -> None:
    assert resolve("posixpath:join")("a", "b") == "a/b"


@pytest.mark.parametrize("text", ["module", ":f", "module:", "", ":"])
def test_texts_that_name_nothing(text: str) -> None:
    with pytest.raises(ModelLoadError, match="expected 'module:callable'"):
        resolve(text)


def test_what_is_not_there_is_named(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no file"):
        resolve(f"{tmp_path}/absent.py:f")
    with pytest.raises(ModelLoadError, match="has no 'absent'"):
        resolve(f"{file}:absent")
    with pytest.raises(ModelLoadError, match="no module 'absent_module'"):
        resolve("absent_module:f")
    with pytest.raises(ModelLoadError, match=r"no module 'os\.absent'|not a package|absent"):
        resolve("os.absent:f")


def test_a_module_that_is_not_there_is_looked_for_in_ones_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelLoadError, match="no module 'absent_module'") as caught:
        resolve("absent_module:f")
    assert f"neither in {tmp_path}" in str(caught.value)
    assert "site-packages" not in str(caught.value)
    assert "lib-dynload" not in str(caught.value)


def test_whatever_goes_wrong_is_a_load_error_with_its_traceback(tmp_path: Path) -> None:
    broken = tmp_path / "broken_for_source_test.py"
    broken.write_text("raise RuntimeError('while importing')\n")
    with pytest.raises(ModelLoadError, match="while importing") as raised:
        load(Model(f"{broken}:f"))
    assert "broken_for_source_test.py" in str(raised.value).partition("\0")[2]
    missing = tmp_path / "needs_for_source_test.py"
    missing.write_text("import absent_dependency\n")
    with pytest.raises(ModelLoadError, match="absent_dependency"):
        load(Model(f"{missing}:f"))
    for name in ("broken_for_source_test", "needs_for_source_test"):
        sys.modules.pop(name, None)


def test_what_is_loaded_has_its_settings(file: Path) -> None:
    runnable = load(Model(f"{file}:double", max_batch=7, batched=False, inputs=("int8", ())))
    assert (runnable.max_batch, runnable.batched) == (7, False)
    assert runnable.spec.inputs is not None
    with pytest.raises(ModelLoadError, match="cannot be called"):
        load(Model(f"{file}:number"))
