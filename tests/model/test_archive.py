"""Keras files: of Keras 3 and of Keras 2, whole and damaged, harmless and not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from tests.model.networks import answers, close, graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("kind", ["dense", "conv", "recurrent", "attention", "two"])
@in_tensorflow
def test_a_file_answers_as_the_model_it_was_saved_from(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    model = network(kind)
    model.save(tmp_path / f"net{suffix}")
    rows = rows_for(kind)
    graph = graph_of(Model(tmp_path / f"net{suffix}"))
    assert [spec.name for spec in graph.inputs] == list(rows)
    assert graph.key
    assert not graph.stateful
    wanted = model(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
    for known in (None, 5):
        got = answers(graph, rows, known)
        if isinstance(wanted, dict):
            assert got.keys() == wanted.keys()
            for name in wanted:
                close(got[name], wanted[name])
        else:
            close(got, wanted)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("kind", ["dense", "conv", "recurrent", "attention", "two"])
@in_tensorflow
def test_files_of_keras_2(tmp_path: Path, kind: str, suffix: str) -> None:
    import tf_keras

    model = network(kind, tf_keras)
    model.save(tmp_path / f"net{suffix}")
    rows = rows_for(kind)
    graph = graph_of(Model(tmp_path / f"net{suffix}"))
    assert [spec.name for spec in graph.inputs] == list(rows)
    assert "tf_keras" in type(graph.keep).__module__ or "tf_keras" in str(graph.keep)
    wanted = model(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
    got = answers(graph, rows)
    for one, other in zip(
        got.values() if isinstance(got, dict) else [got],
        [wanted[name] for name in got] if isinstance(got, dict) else [wanted],
        strict=True,
    ):
        close(one, other)


@in_tensorflow
def test_tensors_are_described(tmp_path: Path) -> None:
    network("recurrent").save(tmp_path / "net.keras")
    graph = graph_of(Model(tmp_path / "net.keras"))
    assert graph.inputs[0] == ("float32", (None, 5), "sequence")
    assert graph.outputs == (("float32", (6,), ""),)
    network("two").save(tmp_path / "two.keras")
    graph = graph_of(Model(tmp_path / "two.keras"))
    assert {spec.name: spec.shape for spec in graph.outputs} == {"sum": (2,), "label": (1,)}


@in_tensorflow
def test_lists_of_inputs_and_outputs_get_the_layers_names(tmp_path: Path) -> None:
    import keras

    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    outputs = [keras.layers.Dense(1, name="first")(a), keras.layers.Dense(3, name="second")(b)]
    model = keras.Model([a, b], outputs)
    model.save(tmp_path / "net.keras")
    graph = graph_of(Model(tmp_path / "net.keras"))
    x, y = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    got = answers(graph, {"a": x, "b": y})
    first, second = model([x, y])
    close(got["first"], first)
    close(got["second"], second)


@in_tensorflow
def test_a_model_that_was_built_by_calling_it_takes_any_number_of_rows(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.layers.Dense(3)])
    model(np.zeros((2, 4), np.float32))
    model.save(tmp_path / "net.keras")
    x = rows_for("dense", 7)["vector"]
    graph = graph_of(Model(tmp_path / "net.keras"))
    assert graph.inputs[0].shape == (4,)
    close(answers(graph, x), model(x))


@in_tensorflow
def test_half_precision_and_texts(tmp_path: Path) -> None:
    import keras

    half = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_float16")])
    half.save(tmp_path / "half.keras")
    assert graph_of(Model(tmp_path / "half.keras")).outputs == (("float16", (3,), ""),)
    words = keras.layers.TextVectorization(output_mode="int", output_sequence_length=4)
    words.adapt(["the cat", "the dog"])
    texts = keras.Sequential([keras.Input((1,), dtype="string"), words])
    texts.save(tmp_path / "texts.keras")
    graph = graph_of(Model(tmp_path / "texts.keras"))
    assert graph.inputs[0].dtype == "string"
    asked = np.array([[b"the cat"], [b"a dog"]], object)
    np.testing.assert_array_equal(answers(graph, asked), texts(np.array(asked, str)))


@in_tensorflow
def test_inference_mode(tmp_path: Path) -> None:
    """Dropout does nothing, and batch normalization does not learn."""
    model = network("conv")
    for _ in range(2):
        model(rows_for("conv")["image"], training=True)
    model.save(tmp_path / "net.keras")
    graph = graph_of(Model(tmp_path / "net.keras"))
    first = answers(graph, rows_for("conv"))
    np.testing.assert_array_equal(first, answers(graph, rows_for("conv")))
    close(first, model(rows_for("conv")["image"], training=False))


@in_tensorflow
def test_a_recurrent_state_that_is_kept_is_told(tmp_path: Path) -> None:
    import keras

    inner = keras.layers.LSTM(2, stateful=True, name="memory")
    model = keras.Sequential([keras.Input(batch_shape=(1, 3, 2)), inner])
    model.save(tmp_path / "net.keras")
    assert "'memory'" in graph_of(Model(tmp_path / "net.keras")).stateful


@in_tensorflow
def test_declared_inputs_are_cast_and_fill_open_sizes(tmp_path: Path) -> None:
    model = network("conv")
    model.save(tmp_path / "net.keras")
    path = tmp_path / "net.keras"
    pixels = np.random.default_rng(0).integers(0, 255, (3, 12, 12, 3), np.uint8)
    graph = graph_of(Model(path, inputs=("uint8", (12, 12, 3))))
    assert graph.inputs == (("uint8", (12, 12, 3), "image"),)
    close(answers(graph, pixels), model(pixels.astype(np.float32)))
    with pytest.raises(ModelLoadError, match=r"takes float32 \(rows, 12, 12, 3\).*\(rows, 9, 9"):
        graph_of(Model(path, inputs=("float32", (9, 9, 3))))
    with pytest.raises(ModelLoadError, match=r"takes float32.*string"):
        graph_of(Model(path, inputs=("string", (12, 12, 3))))
    with pytest.raises(ModelLoadError, match=r"takes 1 .*gives 2"):
        graph_of(Model(path, inputs={"a": ("int8", ()), "b": ("int8", ())}))
    network("recurrent").save(tmp_path / "open.keras")
    graph = graph_of(Model(tmp_path / "open.keras", inputs=("float32", (7, 5))))
    assert graph.inputs == (("float32", (7, 5), "sequence"),)


@in_tensorflow
def test_declared_outputs_are_checked(tmp_path: Path) -> None:
    network("dense").save(tmp_path / "net.keras")
    path = tmp_path / "net.keras"
    assert graph_of(Model(path, outputs=("float32", (None,)))).outputs == (("float32", (3,), ""),)
    with pytest.raises(ModelLoadError, match=r"float32 \(rows, 2\)"):
        graph_of(Model(path, outputs=("float32", (2,))))
    with pytest.raises(ModelLoadError, match="float16"):
        graph_of(Model(path, outputs=("float16", (3,))))
    with pytest.raises(ModelLoadError, match="'score'"):
        graph_of(Model(path, outputs={"score": ("float32", (3,))}))


# ── code in files ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["k3.keras", "k3.h5", "k2.keras", "k2.h5"])
@in_tensorflow
def test_code_in_a_file_runs_only_when_that_is_allowed(tmp_path: Path, name: str) -> None:
    import keras
    import tf_keras

    library = keras if name.startswith("k3") else tf_keras
    layers = [library.Input((3,)), library.layers.Lambda(lambda x: x * 2.0)]
    library.Sequential(layers).save(tmp_path / name)
    with pytest.raises(ModelLoadError, match=r"Python code.*unsafe=True.*--unsafe"):
        graph_of(Model(tmp_path / name))
    x = np.ones((2, 3), np.float32)
    close(answers(graph_of(Model(tmp_path / name, unsafe=True)), x), 2 * x)


@in_tensorflow
def test_an_archive_of_keras_2_imports_nothing_unless_that_is_allowed(tmp_path: Path) -> None:
    import tf_keras

    path = tmp_path / "net.keras"
    tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))]).save(path)
    _change(path, "config.json", lambda text: text.replace('"keras.layers"', '"antigravity"'))
    with pytest.raises(ModelLoadError, match=r"antigravity.*unsafe=True"):
        graph_of(Model(path))
    assert "antigravity" not in sys.modules


@in_tensorflow
def test_classes_of_the_users_need_a_function(tmp_path: Path) -> None:
    import keras

    @keras.saving.register_keras_serializable("archive_test")
    class Mine(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    for name in ("net.keras", "net.h5"):
        keras.Sequential([keras.Input((3,)), Mine()]).save(tmp_path / name)
    registered = keras.saving.get_custom_objects()
    mine = registered.pop("archive_test>Mine")
    try:
        for name in ("net.keras", "net.h5"):
            with pytest.raises(ModelLoadError, match=r"classes or functions of yours.*module:func"):
                graph_of(Model(tmp_path / name))
    finally:
        registered["archive_test>Mine"] = mine


# ── what is no model ───────────────────────────────────────────────────────────────────────────


@in_tensorflow
def test_damaged_files(tmp_path: Path) -> None:
    whole = {}
    for suffix in (".keras", ".h5"):
        network("dense").save(tmp_path / f"whole{suffix}")
        whole[suffix] = (tmp_path / f"whole{suffix}").read_bytes()
    for suffix, data in whole.items():
        path = tmp_path / f"net{suffix}"
        for size in (0, 1, 7, 100, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:size])
            with pytest.raises(ModelLoadError, match=f"net{suffix}.*(empty|found|damaged)"):
                graph_of(Model(path))
        path.write_bytes(b"no model at all, but a text")
        with pytest.raises(ModelLoadError, match=r"expected a Keras archive.*b'no model'"):
            graph_of(Model(path))
    path = tmp_path / "net.keras"
    for inside in ("config.json", "metadata.json", "model.weights.h5"):
        for change in (lambda text: text[: len(text) // 2], lambda text: "{}", None):
            path.write_bytes(whole[".keras"])
            _change(path, inside, change)
            if inside == "metadata.json" and change is not None and change("xx") == "{}":
                graph_of(Model(path))  # nothing there is needed
                continue
            with pytest.raises(ModelLoadError, match=r"net\.keras.*damaged"):
                graph_of(Model(path))


@in_tensorflow
def test_weights_alone_are_no_model(tmp_path: Path) -> None:
    network("dense").save_weights(tmp_path / "net.weights.h5")
    with pytest.raises(ModelLoadError, match="weights only"):
        graph_of(Model(tmp_path / "net.weights.h5"))


@in_tensorflow
def test_what_is_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no file or folder .*absent\.keras.*SavedModel"):
        graph_of(Model(tmp_path / "absent.keras"))
    (tmp_path / "net.onnx").write_bytes(b"onnx")
    with pytest.raises(ModelLoadError, match=r"suffix '\.onnx'; expected .*file \.keras, \.h5"):
        graph_of(Model(tmp_path / "net.onnx"))
    network("dense").save(tmp_path / "net.keras")
    with pytest.raises(ModelLoadError, match="no signatures"):
        graph_of(Model(tmp_path / "net.keras", signature="serve"))


@in_tensorflow
def test_the_key_says_what_a_graph_was_made_of(tmp_path: Path) -> None:
    model = network("dense")
    model.save(tmp_path / "one.keras")
    key = graph_of(Model(tmp_path / "one.keras")).key
    shutil.copy(tmp_path / "one.keras", tmp_path / "copy.keras")
    assert graph_of(Model(tmp_path / "copy.keras")).key == key
    model.save(tmp_path / "again.keras")
    assert graph_of(Model(tmp_path / "again.keras")).key == key
    assert graph_of(Model(tmp_path / "one.keras", inputs=("uint8", (4,)))).key != key
    model.layers[0].kernel.assign_add(model.layers[0].kernel)
    model.save(tmp_path / "other.keras")
    assert graph_of(Model(tmp_path / "other.keras")).key != key


# ── without tf_keras ───────────────────────────────────────────────────────────────────────────

_WITHOUT_KERAS_2 = """
import sys
sys.modules["tf_keras"] = None
from penstock.config import Model
from penstock.errors import ModelLoadError
from tests.model.networks import graph_of
for path in sys.argv[1:]:
    try:
        graph_of(Model(path))
        print("loaded")
    except ModelLoadError as error:
        print(str(error).partition(chr(0))[0])
"""


@in_tensorflow
def _make_old_files(folder: Path) -> None:
    import tf_keras

    x = given = tf_keras.Input((3,))
    x = tf_keras.layers.Dense(2)(x) * 2.0  # a TFOpLambda, which Keras 3 does not know
    tf_keras.Model(given, x).save(folder / "net.h5")
    tf_keras.Model(given, x).save(folder / "net.keras")


def test_the_hint_where_keras_2_is_missing(tmp_path: Path) -> None:
    _make_old_files(folder=tmp_path)
    command = [
        sys.executable,
        "-c",
        _WITHOUT_KERAS_2,
        f"{tmp_path}/net.h5",
        f"{tmp_path}/net.keras",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install tf-keras") == 2, done.stdout
    assert "written by Keras 2." in done.stdout


def _change(path: Path, inside: str, change: Any) -> None:
    """Change, or with `None` leave out, a file in an archive."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    data = files.pop(inside)
    if change is not None:
        files[inside] = change(data.decode("latin-1")).encode("latin-1")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
