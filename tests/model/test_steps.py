"""Preprocess and postprocess, composed into the graph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from tests.model.networks import answers, close, graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow

STEPS = str(Path(__file__).parent.parent / "models" / "tensors.py")


@in_tensorflow
def test_encoded_images_of_several_sizes_in_one_batch(tmp_path: Path) -> None:
    import tensorflow as tf

    model = network("conv")
    model.save(tmp_path / "net.keras")
    random = np.random.default_rng(1)
    images = [
        random.integers(0, 255, (height, width, 3), np.uint8)
        for height, width in ((12, 12), (30, 20), (5, 9))
    ]
    encoded = [tf.io.encode_png(image).numpy() for image in images]
    encoded[1] = tf.io.encode_jpeg(images[1], quality=95).numpy()
    graph = graph_of(
        Model(tmp_path / "net.keras", inputs=("string", ()), preprocess=f"{STEPS}:decode")
    )
    assert graph.inputs == (("string", (), ""),)
    got = answers(graph, np.array(encoded, object))
    pixels = [
        tf.image.resize(tf.cast(tf.io.decode_image(data, 3), tf.float32), (12, 12))
        for data in encoded
    ]
    close(got, model(tf.stack(pixels)))


@in_tensorflow
def test_what_callers_send_is_declared_or_said_by_the_function(tmp_path: Path) -> None:
    path = f"{STEPS}:build"
    pixels = np.random.default_rng(1).integers(0, 255, (4, 3), np.uint8)
    wanted = graph_of(Model(path))
    with pytest.raises(ModelLoadError, match=r"preprocess .*scale: declare what callers send"):
        graph_of(Model(path, preprocess=f"{STEPS}:scale"))
    declared = graph_of(Model(path, preprocess=f"{STEPS}:scale", inputs=("uint8", (3,))))
    said = graph_of(Model(path, preprocess=f"{STEPS}:scale_signed"))
    assert declared.inputs == (("uint8", (3,), ""),)
    assert said.inputs == (("uint8", (3,), "pixels"),)
    for graph in (declared, said):
        close(answers(graph, pixels), answers(wanted, pixels / np.float32(255)))


@pytest.mark.parametrize("step", ["split", "split_in_order"])
@in_tensorflow
def test_one_array_for_a_model_of_two_inputs(tmp_path: Path, step: str) -> None:
    model = network("two")
    model.save(tmp_path / "net.keras")
    rows = rows_for("two")
    together = np.concatenate([rows["left"], rows["right"]], axis=1)
    graph = graph_of(
        Model(tmp_path / "net.keras", inputs=("float32", (7,)), preprocess=f"{STEPS}:{step}")
    )
    close(answers(graph, together)["sum"], model(rows)["sum"])


@pytest.mark.parametrize("step", ["merge", "merge_dict"])
@in_tensorflow
def test_two_arrays_for_a_model_of_one_input(step: str) -> None:
    inputs = {"left": ("float32", (1,)), "right": ("float32", (2,))}
    graph = graph_of(Model(f"{STEPS}:build", inputs=inputs, preprocess=f"{STEPS}:{step}"))
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    assert [spec.name for spec in graph.inputs] == ["left", "right"]
    got = answers(graph, {"left": x[:, :1], "right": x[:, 1:]})
    close(got, answers(graph_of(Model(f"{STEPS}:build")), x))


@in_tensorflow
def test_postprocess_of_one_and_of_several_outputs(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    scores = answers(graph_of(Model(f"{STEPS}:build")), x)
    got = answers(graph_of(Model(f"{STEPS}:build", postprocess=f"{STEPS}:best")), x)
    assert got["label"].tolist() == scores.argmax(1).tolist()
    close(got["score"], scores.max(1))
    model = network("two")
    model.save(tmp_path / "net.keras")
    rows = rows_for("two")
    wanted = model(rows)
    one = graph_of(Model(tmp_path / "net.keras", postprocess=f"{STEPS}:first_only"))
    close(answers(one, rows), wanted["sum"])
    both = graph_of(Model(tmp_path / "net.keras", postprocess=f"{STEPS}:total"))
    close(answers(both, rows), np.sum(wanted["sum"], 1) + wanted["label"][:, 0])


@in_tensorflow
def test_a_model_that_does_not_know_what_it_takes_learns_it_from_preprocess() -> None:
    step = f"{STEPS}:scale"
    model = Model(f"{STEPS}:polymorphic", preprocess=step, inputs=("uint8", (3,)))
    x = np.full((2, 3), 51, np.uint8)
    close(answers(graph_of(model), x), np.full((2, 3), 0.4))


@in_tensorflow
def test_a_saved_model_between_two_steps(tmp_path: Path) -> None:
    model = network("dense")
    model.export(tmp_path / "net", verbose=False)
    steps = {"preprocess": f"{STEPS}:scale", "postprocess": f"{STEPS}:best"}
    graph = graph_of(Model(tmp_path / "net", inputs=("int64", (4,)), **steps))
    x = np.ones((3, 4), np.int64)
    close(answers(graph, x)["score"], np.max(model(x.astype(np.float32)), axis=1))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"preprocess": "no_tensor"}, "no_tensor.*is not a Tensor"),
        ({"postprocess": "no_tensor"}, "no_tensor.*is not a Tensor"),
        ({"preprocess": "absent"}, "has no 'absent'"),
        ({"preprocess": "__name__"}, "a str, which cannot be called"),
        ({"preprocess": "split"}, r"takes 1 \('x'\).*gives 2 \('left', 'right'\)"),
        ({"preprocess": "decode", "inputs": ("string", ())}, r"\(rows, 3\).*\(rows, 12, 12, 3\)"),
    ],
)
@in_tensorflow
def test_steps_that_do_not_fit(settings: dict[str, Any], complaint: str) -> None:
    from penstock.model.load import load

    settings = {"inputs": ("float32", (3,))} | settings
    for step in ("preprocess", "postprocess"):
        if step in settings:
            settings[step] = f"{STEPS}:{settings[step]}"
    with pytest.raises(ModelLoadError, match=complaint):
        load(Model(f"{STEPS}:build", **settings))


@in_tensorflow
def test_what_a_step_raises_is_told_with_what_it_was_given() -> None:
    from penstock.model.load import load

    model = Model(f"{STEPS}:build", inputs=("float32", (3,)), preprocess=f"{STEPS}:wrong")
    with pytest.raises(ModelLoadError, match=r"preprocess .*wrong, traced with float32 \(rows, 3"):
        load(model)


@in_tensorflow
def test_the_key_knows_the_code_of_the_steps(tmp_path: Path) -> None:
    network("dense").save(tmp_path / "net.keras")
    step = tmp_path / "step_for_key_test.py"
    keys = []
    for factor in (2, 3):
        sys.modules.pop("step_for_key_test", None)
        step.write_text(f"def scale(x):\n    return x * {factor}.0\n")
        model = Model(tmp_path / "net.keras", inputs=("float32", (4,)), preprocess=f"{step}:scale")
        keys.append(graph_of(model).key)
    assert len(set(keys)) == 2
    assert all(keys)
