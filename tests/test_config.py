"""Settings: refused when unknown or impossible, the same on the other side of JSON."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import pytest

from penstock.config import (
    EngineConfig,
    Model,
    from_json,
    models_of,
    parse_bytes,
    source_text,
    to_json,
)
from penstock.engine.owner import Engine
from penstock.errors import ConfigError
from penstock.spec import TensorSpec


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="wrokers"):
        EngineConfig(wrokers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="batch"):
        Model("a:b", batch=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"unknown setting 'wrokers'.*workers"):
        Engine("a:b", wrokers=2)


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": -1},
        {"devices": ()},
        {"devices": 3},
        {"gpu_memory": -1},
        {"workers": True},
        {"workers": "2"},
        {"workers": 1.5},
        {"client_memory": 1},
        {"client_requests": 0},
        {"queue_rows": 0},
        {"queue_rows": 10.5},
        {"restarts": -1},
        {"run_timeout": 0},
        {"run_timeout": float("nan")},
        {"run_timeout": float("inf")},
        {"load_timeout": -3},
        {"drain_timeout": -1},
        {"restart_refill": 0},
        {"name": "../up"},
        {"name": "a b"},
    ],
)
def test_impossible_engine_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch": -1},
        {"precision": "float8"},
        {"max_batch": 65_537},
        {"max_batch": "32"},
        {"max_batch": 2.5},
        {"compile": "fast"},
        {"ladder": (0, 8)},
        {"ladder": (8, 64), "max_batch": 32},
        {"ladder": "1,8"},
        {"ladder": (1, 2.5)},
        {"ladder": tuple(range(1, 101)), "max_batch": 100},
        {"tolerance": -0.1},
        {"warm": "some"},
        {"warm": "0"},
        {"tolerance": "much"},
        {"name": "a/b"},
        {"inputs": "float32"},
        {"inputs": {}},
        {"outputs": ("float77", ())},
    ],
)
def test_impossible_model_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Model("module:function", **settings)  # type: ignore[arg-type]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().workers = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Model("a:b").max_batch = 3  # type: ignore[misc]


def test_every_setting_of_a_command_has_a_help_text() -> None:
    for field in dataclasses.fields(EngineConfig):
        assert field.name == "name" or field.metadata["help"]


def test_settings_are_the_same_behind_json() -> None:
    models = (
        Model("a:b", inputs={"x": ("float32", (None, 3)), "y": ("string", ())}, max_batch=7),
        Model("c:d", name="other", outputs=("bfloat16", (2,)), batched=False),
    )
    config = EngineConfig(name="n", workers=3, run_timeout=1.5, group="staff")
    again, config_again, extra = from_json(to_json(models, config, index=4, sys_path=["p"]))
    assert again == models
    assert again[0].inputs[0] == TensorSpec("float32", (None, 3), "x")
    assert config_again == config
    assert extra == {"index": 4, "sys_path": ["p"]}


def test_models_get_names_from_their_sources() -> None:
    assert Model("package.module:score").name == "score"
    assert Model("folder/net.keras").name == "net"
    assert Model("m:Outer.inner").name == "Outer.inner"
    assert Model("m:_hidden").name == "hidden"


def test_sources() -> None:
    assert source_text("a.b:c") == "a.b:c"
    assert source_text("file.py:f") == f"{os.getcwd()}/file.py:f"
    assert source_text(Path("x.keras")) == f"{os.getcwd()}/x.keras"
    assert source_text(os.path.join) == "posixpath:join"
    assert source_text(Path) in ("pathlib:Path", "pathlib._local:Path")


def test_a_ladder_is_sorted_and_ends_with_the_largest_batch() -> None:
    model = Model("a:b", ladder=[8, 1, 8])
    assert (model.ladder, model.max_batch) == ((1, 8), 8)
    assert from_json(to_json([model], EngineConfig()))[0] == (model,)
    assert Model("a:b").ladder == ()


def test_an_unknown_compile_mode_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="auto, function, frozen, xla, frozen-xla; got 'fast'"):
        Model("a:b", compile="fast")


def test_steps_are_sources_too() -> None:
    model = Model("a:b", preprocess=os.path.join, postprocess="file.py:f")
    assert model.preprocess == "posixpath:join"
    assert model.postprocess == f"{os.getcwd()}/file.py:f"
    assert from_json(to_json([model], EngineConfig()))[0] == (model,)
    with pytest.raises(ConfigError, match="top level"):
        Model("a:b", preprocess=lambda x: x)


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "v:2").mkdir()
    assert source_text(tmp_path / "v:2") == f"{tmp_path}/v:2"


def test_sources_that_no_worker_can_import_are_refused() -> None:
    def inner(x: object) -> object:
        return x

    with pytest.raises(ConfigError, match="top level"):
        Model(inner)
    with pytest.raises(ConfigError, match="top level"):
        Model(lambda x: x)
    with pytest.raises(ConfigError, match="a text, a function or a Keras model"):
        Model(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="empty"):
        Model("")


def test_what_a_worker_would_find_is_what_was_passed() -> None:
    """A wrapper has the name of what it wraps, and a method that of its class's function."""
    wrapper = functools.wraps(os.path.join)(lambda x: x)
    for other in (wrapper, Path.home().joinpath):
        with pytest.raises(ConfigError, match="is not what a worker would find as"):
            Model(other)
    assert source_text(Path.home) in ("pathlib:Path.home", "pathlib._local:Path.home")


def test_a_function_of_the_script_itself_is_refused_with_advice() -> None:
    def main_function() -> None: ...

    main_function.__module__ = "__main__"
    main_function.__qualname__ = "main_function"
    with pytest.raises(ConfigError, match=r"file\.py:main_function"):
        Model(main_function)


def test_models_by_name_in_a_list_and_alone() -> None:
    assert [model.name for model in models_of("m:f")] == ["f"]
    assert [model.name for model in models_of(["m:f", Model("m:g", name="h")])] == ["f", "h"]
    named = models_of({"a": "m:f", "b": Model("m:f", max_batch=3)})
    assert [(model.name, model.max_batch) for model in named] == [("a", 0), ("b", 3)]


@pytest.mark.parametrize("models", [[], {}, ["m:f", "n:f"]])
def test_no_models_or_two_of_one_name_are_refused(models: object) -> None:
    with pytest.raises(ConfigError):
        models_of(models)


def test_model_settings_of_an_engine_belong_to_a_single_source() -> None:
    assert Engine("m:f", max_batch=5).model_settings[0].max_batch == 5
    for several in (["m:f"], {"a": "m:f"}, Model("m:f")):
        with pytest.raises(ConfigError, match=r"penstock\.Model"):
            Engine(several, max_batch=5)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        (4096, 4096),
        ("512M", 512 << 20),
        ("4G", 4 << 30),
        ("1.5GiB", 3 << 29),
        (" 2 kb ", 2048),
        ("1t", 1 << 40),
        ("10B", 10),
    ],
)
def test_sizes_in_bytes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


def test_engines_take_sizes_as_people_write_them() -> None:
    config = EngineConfig(gpu_memory="4G", pinned_memory="1.5GiB", client_memory=1 << 20)
    assert (config.gpu_memory, config.pinned_memory) == (4 << 30, 3 << 29)
    with pytest.raises(ConfigError, match="a size is a number with K, M, G or T"):
        EngineConfig(gpu_memory="all")


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "4X", "4 G B", "nan", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="for example 4G"):
        parse_bytes(text)
