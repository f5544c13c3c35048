"""The demo's network learns handwritten digits as well in every mode as on one device."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tensorflow_process import in_tensorflow
from tests.train.launching import Launcher
from tests.train.learning import process_of_two_cpus, two_cpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LEARNT = 0.95  # of 450 digits that were held out
WITHIN = 0.02  # nine of them: dropout draws other places on each device


def learn(place: Path, **mode: Any) -> float:
    """What every mode does, with the same first weights and the same order of rows."""
    import keras
    import numpy as np

    import penstock

    with np.load(place / "digits.npz") as digits:
        seen, classes, unseen, labels = (digits[name] for name in digits.files)
    keras.utils.set_random_seed(1)
    model = keras.models.load_model(place / "digits.keras")
    options = {"batch_size": 64, "epochs": 5, "seed": 1, "verbose": 0}
    trained = penstock.train.fit(model, seen, classes, **options, **mode).model
    answers = trained.predict(unseen, batch_size=len(unseen), verbose=0)
    return float((answers.argmax(axis=1) == labels).mean())


JOB = f"""
from typing import Any
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
{inspect.getsource(learn)}
accuracy = learn(HERE)
(HERE / f"told-{{NAME}}-{{INDEX}}").write_text(json.dumps(accuracy))
"""


@in_tensorflow
def in_one_process(place: Path) -> dict[str, float]:
    import keras
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from penstock.cli.demo.training import _network

    two_cpus()
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    seen, unseen, classes, labels = train_test_split(
        images, digits.target, test_size=0.25, random_state=1, stratify=digits.target
    )
    np.savez(place / "digits.npz", seen, classes, unseen, labels)
    _network(images.shape[1:]).save(place / "digits.keras")
    one = {"strategy": "one"}
    modes = {
        "one": one,
        "accumulate": one | {"accumulate": 4},
        "mirrored": {"strategy": "mirrored"},
    }
    return {name: learn(place, **mode) for name, mode in modes.items()}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    place = tmp_path_factory.mktemp("digits")
    with process_of_two_cpus():
        return place, in_one_process(place=place)


def test_devices_and_micro_batches_learn_as_well_as_one(one_process: Any) -> None:
    _, found = one_process
    assert all(accuracy >= LEARNT for accuracy in found.values()), found
    assert all(abs(accuracy - found["one"]) <= WITHIN for accuracy in found.values()), found


@pytest.mark.parametrize(
    ("told", "tasks"), [("worker", ("--workers", 2)), ("chief", ("--workers", 1, "--ps", 1))]
)
def test_several_processes_learn_as_well_as_one(
    one_process: Any, told: str, tasks: tuple[object, ...]
) -> None:
    place, found = one_process
    launcher = Launcher(place)
    try:
        done = launcher.run(launcher.script(JOB), *tasks)
    finally:
        launcher.close()
    assert done.returncode == 0, done.stdout
    accuracy = json.loads((place / f"told-{told}-0").read_text())
    assert accuracy >= LEARNT
    assert abs(accuracy - found["one"]) <= WITHIN
