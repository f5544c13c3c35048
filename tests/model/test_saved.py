"""SavedModel folders, whoever wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from tests.model.networks import answers, close, graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow


@pytest.mark.parametrize("kind", ["dense", "conv", "recurrent", "attention", "two"])
@in_tensorflow
def test_what_keras_exports(tmp_path: Path, kind: str) -> None:
    model = network(kind)
    model.export(tmp_path / "net", verbose=False)
    rows = rows_for(kind)
    graph = graph_of(Model(tmp_path / "net"))
    got = answers(graph, rows if len(rows) > 1 else next(iter(rows.values())))
    wanted = model(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
    if kind == "two":
        assert got.keys() == {"sum", "label"}
        assert {spec.name for spec in graph.inputs} == {"left", "right"}
        for name, array in got.items():
            close(array, wanted[name])
    else:
        close(got, wanted)
    assert graph.key


@in_tensorflow
def test_what_keras_2_saves(tmp_path: Path) -> None:
    import tf_keras

    model = network("two", tf_keras)
    model.save(tmp_path / "net", save_format="tf")
    rows = rows_for("two")
    got = answers(graph_of(Model(tmp_path / "net")), rows)
    wanted = model(rows)
    for name, layer in zip(sorted(wanted), model.output_names, strict=True):
        close(got[layer], wanted[name])  # Keras 2 names outputs after their layers


def _module() -> Any:
    import tensorflow as tf

    class Scaled(tf.Module):
        def __init__(self) -> None:
            self.factor = tf.Variable([2.0])

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
        def doubled(self, x: Any) -> Any:
            return {"y": x * self.factor}

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
        def both(self, x: Any) -> Any:
            return {"less": x - 1.0, "more": x + 1.0}

        @tf.function(input_signature=[tf.TensorSpec([8, 3], tf.float32, "x")])
        def eights(self, x: Any) -> Any:
            return {"y": x * self.factor, "rows": tf.fill([8], 8)}

    return Scaled()


@in_tensorflow
def test_signatures_are_chosen_by_name(tmp_path: Path) -> None:
    import tensorflow as tf

    module = _module()
    signatures = {"double": module.doubled, "serving_default": module.both}
    tf.saved_model.save(module, str(tmp_path / "net"), signatures=signatures)
    x = np.ones((2, 3), np.float32)
    path = tmp_path / "net"
    close(answers(graph_of(Model(path, signature="double")), x), 2 * x)
    for chosen in ("", "serving_default"):
        got = answers(graph_of(Model(path, signature=chosen)), x)
        assert got.keys() == {"less", "more"}
    with pytest.raises(
        ModelLoadError, match=r"no signature 'triple'.*'double', 'serving_default'.*signature="
    ):
        graph_of(Model(path, signature="triple"))
    keys = {graph_of(Model(path, signature=name)).key for name in ("", "double")}
    assert len(keys) == 2


@in_tensorflow
def test_a_single_signature_needs_no_name(tmp_path: Path) -> None:
    import tensorflow as tf

    module = _module()
    tf.saved_model.save(module, str(tmp_path / "net"), signatures={"double": module.doubled})
    x = np.ones((2, 3), np.float32)
    close(answers(graph_of(Model(tmp_path / "net")), x), 2 * x)


@in_tensorflow
def test_several_signatures_without_a_default_have_to_be_chosen_from(tmp_path: Path) -> None:
    import tensorflow as tf

    module = _module()
    signatures = {"double": module.doubled, "both": module.both}
    tf.saved_model.save(module, str(tmp_path / "net"), signatures=signatures)
    with pytest.raises(ModelLoadError, match=r"no signature 'serving_default'.*'both', 'double'"):
        graph_of(Model(tmp_path / "net"))


@in_tensorflow
def test_without_signatures_the_call_or_a_function_is_used(tmp_path: Path) -> None:
    import tensorflow as tf

    module = _module()
    tf.saved_model.save(module, str(tmp_path / "net"), signatures={})
    x = np.ones((2, 3), np.float32)
    got = answers(graph_of(Model(tmp_path / "net", signature="doubled")), x)
    close(got["y"], 2 * x)
    with pytest.raises(ModelLoadError, match="it has none"):
        graph_of(Model(tmp_path / "net"))

    class Called(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
        def __call__(self, x: Any) -> Any:
            return x * 3.0

    tf.saved_model.save(Called(), str(tmp_path / "called"), signatures={})
    close(answers(graph_of(Model(tmp_path / "called")), x), 3 * x)


@in_tensorflow
def test_a_fixed_number_of_rows_is_no_limit(tmp_path: Path) -> None:
    import tensorflow as tf

    module = _module()
    tf.saved_model.save(module, str(tmp_path / "net"), signatures={"eights": module.eights})
    graph = graph_of(Model(tmp_path / "net"))
    assert graph.inputs == (("float32", (3,), "x"),)
    for rows in (0, 1, 7, 8, 9, 20):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        for known in (None, rows):
            got = answers(graph, x, known)
            close(got["y"], 2 * x)
            assert got["rows"].tolist() == [8] * rows


@in_tensorflow
def test_a_saved_model_of_tensorflow_1(tmp_path: Path) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        weight = v1.get_variable("weight", [3, 2], initializer=v1.ones_initializer())
        y = tf.matmul(x, weight)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "net"), {"x": x}, {"y": y})
    x = np.ones((2, 3), np.float32)
    close(answers(graph_of(Model(tmp_path / "net")), x), np.full((2, 2), 3.0))


@in_tensorflow
def test_an_unknown_number_of_axes_has_to_be_declared(tmp_path: Path) -> None:
    import tensorflow as tf

    class Loose(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, "x")])
        def run(self, x: Any) -> Any:
            return {"y": x + 1.0}

    module = Loose()
    tf.saved_model.save(module, str(tmp_path / "net"), signatures={"run": module.run})
    with pytest.raises(ModelLoadError, match=r"axes is not known.*inputs="):
        graph_of(Model(tmp_path / "net"))
    with pytest.raises(ModelLoadError, match=r"axes is not known.*outputs="):
        graph_of(Model(tmp_path / "net", inputs=("float32", (3,))))
    spec = ("float32", (3,))
    x = np.ones((2, 3), np.float32)
    close(answers(graph_of(Model(tmp_path / "net", inputs=spec, outputs=spec)), x), x + 1)


@in_tensorflow
def test_tensors_without_rows_are_told(tmp_path: Path) -> None:
    import tensorflow as tf

    class Odd(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, "x")])
        def scalar(self, x: Any) -> Any:
            return {"y": x}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def constant(self, x: Any) -> Any:
            return {"names": tf.constant(["a", "b"]), "y": x}

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
        def ragged(self, x: Any) -> Any:
            return tf.RaggedTensor.from_tensor(x)

    module = Odd()
    functions = {"scalar": module.scalar, "constant": module.constant}
    tf.saved_model.save(module, str(tmp_path / "net"), signatures=functions)
    with pytest.raises(ModelLoadError, match=r"input 'x'.*no axis for rows"):
        graph_of(Model(tmp_path / "net", signature="scalar"))
    with pytest.raises(ModelLoadError, match=r"output 'names'.*2 long whatever"):
        graph_of(Model(tmp_path / "net", signature="constant"))
    with pytest.raises(ModelLoadError, match=r"Ragged.*to_tensor\(\)"):
        graph_of(Model(tmp_path / "net", signature="ragged"))


@in_tensorflow
def test_folders_that_are_no_saved_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=r"no SavedModel.*saved_model\.pb.*found nothing"):
        graph_of(Model(tmp_path / "empty"))
    (tmp_path / "empty" / "notes.txt").write_text("")
    with pytest.raises(ModelLoadError, match=r"found notes\.txt"):
        graph_of(Model(tmp_path / "empty"))
    network("dense").export(tmp_path / "net", verbose=False)
    shutil.rmtree(tmp_path / "net" / "variables")
    with pytest.raises(ModelLoadError, match="damaged or incomplete"):
        graph_of(Model(tmp_path / "net"))
    (tmp_path / "net" / "saved_model.pb").write_bytes(b"\0\1\2")
    with pytest.raises(ModelLoadError, match="damaged or incomplete"):
        graph_of(Model(tmp_path / "net"))
