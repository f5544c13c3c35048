"""The public names: each exported once, none of them loading anything heavy."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap

import pytest

import penstock


def test_dir_is_what_is_exported() -> None:
    assert sorted(penstock.__all__) == dir(penstock)
    assert len(set(penstock.__all__)) == len(penstock.__all__)


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_resolves_to_itself(name: str) -> None:
    value = getattr(penstock, name)
    assert value is getattr(penstock, name)
    if isinstance(value, type):
        assert value.__name__ == name


def test_no_two_names_are_the_same_thing() -> None:
    values = [getattr(penstock, name) for name in penstock.__all__]
    assert len({id(value) for value in values}) == len(values)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        penstock.nonsense  # noqa: B018
    with pytest.raises(ImportError):
        from penstock import nonsense  # noqa: F401


def _loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "statement",
    [
        "import penstock; dir(penstock)",
        "import penstock; penstock.errors.InputError",
        "import penstock; penstock.Model('m:f'), penstock.EngineConfig()",
        "import penstock.train; dir(penstock.train)",
        "import penstock.engine.server",
        "import penstock.engine.__main__",
    ],
)
def test_neither_the_face_nor_the_engine_loads_numpy(statement: str) -> None:
    loaded = _loaded_after(statement)
    assert "penstock" in loaded
    assert not loaded & {"numpy", "ml_dtypes", "tensorflow", "keras", "asyncio"}


def test_a_client_loads_no_tensorflow() -> None:
    loaded = _loaded_after("import penstock; penstock.connect, penstock.Engine")
    assert "numpy" in loaded
    assert not loaded & {"tensorflow", "keras", "ray"}


def test_the_first_prediction_loads_nothing() -> None:
    """A thousand clients that start together would wait for it, each in its turn."""
    code = """
        import sys
        import numpy as np
        import penstock

        with penstock.Engine("penstock.testing.models:double") as engine:
            client = penstock.connect(engine.name)
            before = set(sys.modules)
            client.predict(np.ones((2, 3)))
            list(client.map([np.ones(3)]))
            print(sorted(set(sys.modules) - before))
            client.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"


def test_help_of_settings_has_each_of_them() -> None:
    for settings in (penstock.Model, penstock.EngineConfig):
        text = settings.__doc__ or ""
        assert [f.name for f in dataclasses.fields(settings) if f"`{f.name}`" not in text] == []
