"""A model moved into a strategy's scope has its own classes and functions there, each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import WIDTH, furthest, process_of_two_cpus, rows, two_cpus

SETTINGS: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield
    tensorflow_process.end()  # which remembers the sizes that were reduced here


def regression(*middle: Callable[[], Any], loss: Any = None, **compiled: Any) -> Any:
    """One number of each row, with the same weights each time."""
    import keras

    keras.utils.set_random_seed(5)
    layers = [keras.Input((WIDTH,)), *(make() for make in middle), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.02), loss or "mse", **compiled)
    return model


def trained_alike(make: Callable[[], Any], y: Any = None) -> dict[str, list[float]]:
    """What Keras' own `fit` makes of it is made of it by two replicas, too."""
    import penstock

    two_cpus()
    x, _ = rows(32)
    y = x[:, :1] + 1 if y is None else y
    reference, model = make(), make()
    wanted = reference.fit(x, y, **SETTINGS)
    got = penstock.train.fit(model, x, y, strategy="mirrored", **SETTINGS)
    assert furthest(model, reference) < 1e-6
    np.testing.assert_allclose(got.history["loss"], wanted.history["loss"], rtol=1e-5)
    return got.history


def scaled(by: float) -> Callable[..., Any]:
    def loss(y: Any, p: Any) -> Any:
        import keras

        return by * keras.ops.mean(keras.ops.square(y - p), axis=-1)

    return loss


def times(by: float) -> Callable[..., Any]:
    def activation(rows: Any) -> Any:
        return by * rows

    return activation


@in_tensorflow
def test_functions_of_one_name_stay_apart() -> None:
    import keras

    def two_losses() -> Any:
        keras.utils.set_random_seed(5)
        inputs = keras.Input((WIDTH,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.05), {"a": scaled(0.1), "b": scaled(3.0)})
        return model

    x, _ = rows(32)
    trained_alike(two_losses, {"a": x[:, :1] + 1, "b": -x[:, :1]})
    trained_alike(
        lambda: regression(
            lambda: keras.layers.Dense(3, activation=times(0.5)),
            lambda: keras.layers.Dense(3, activation=times(2.0)),
        )
    )


@in_tensorflow
def test_a_function_that_is_called_as_one_of_keras_is_the_callers() -> None:
    import keras

    def relu(rows: Any) -> Any:
        return 0.5 * rows

    trained_alike(
        lambda: regression(
            lambda: keras.layers.Dense(3, activation=relu),
            lambda: keras.layers.Dense(3, activation="relu"),
        )
    )


@pytest.mark.parametrize("registered", [False, True])
@in_tensorflow
def test_classes_of_one_name_stay_apart(registered: bool) -> None:
    import keras

    def of(by: float) -> Any:
        class Times(keras.layers.Layer):  # type: ignore[misc]
            def call(self, inputs: Any) -> Any:
                return by * inputs

        return keras.saving.register_keras_serializable("mine")(Times) if registered else Times

    trained_alike(lambda: regression(lambda: of(0.5)(), lambda: of(2.5)()))


@in_tensorflow
def test_what_a_class_looks_up_by_its_usual_name_is_found() -> None:
    import keras

    class Applied(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, function: Any, **settings: Any) -> None:
            super().__init__(**settings)
            self.function = function

        def call(self, inputs: Any) -> Any:
            return self.function(inputs)

        def get_config(self) -> Any:
            return {**super().get_config(), "function": self.function.__name__}

        @classmethod
        def from_config(cls, config: Any) -> Any:
            found = keras.saving.get_registered_object(config.pop("function"))
            return cls(found, **config)

    trained_alike(lambda: regression(lambda: Applied(times(0.5))))


@in_tensorflow
def test_schedules_and_constraints_of_the_callers_own_go_along() -> None:
    import keras

    class Slower(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __call__(self, step: Any) -> Any:
            return self.rate / (1.0 + keras.ops.cast(step, "float32"))

        def get_config(self) -> Any:
            return {"rate": self.rate}

    class Capped(keras.constraints.Constraint):  # type: ignore[misc]
        def __call__(self, weights: Any) -> Any:
            return keras.ops.clip(weights, -0.1, 0.1)

    def make() -> Any:
        model = regression(lambda: keras.layers.Dense(3, kernel_constraint=Capped()))
        model.compile(keras.optimizers.SGD(Slower(0.05)), "mse")
        return model

    trained_alike(make)


def forgetful() -> dict[str, Any]:
    """Classes that Keras makes again without their arguments."""
    import keras

    class Scaled(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self, alpha: float = 1.0, **settings: Any) -> None:
            super().__init__(**settings)
            self.alpha = alpha

        def call(self, y: Any, p: Any) -> Any:
            return self.alpha * keras.ops.mean(keras.ops.square(y - p), axis=-1)

    class Within(keras.metrics.Mean):  # type: ignore[misc]
        def __init__(self, far: float = 0.1, name: str = "within", dtype: Any = None) -> None:
            super().__init__(name=name, dtype=dtype)
            self._limit = far

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> Any:
            near = keras.ops.cast(keras.ops.abs(y - p) < self._limit, "float32")
            return super().update_state(near, sample_weight)

    class Doubled(keras.layers.Dense):  # type: ignore[misc]
        def __init__(self, units: int, by: float = 2.0, **settings: Any) -> None:
            super().__init__(units, **settings)
            self.by = by

        def call(self, inputs: Any) -> Any:
            return self.by * super().call(inputs)

        def get_config(self) -> Any:
            return super().get_config()

    class Capped(keras.constraints.Constraint):  # type: ignore[misc]
        def __init__(self, at: float = 0.1) -> None:
            self.at = at

        def __call__(self, weights: Any) -> Any:
            return keras.ops.clip(weights, -self.at, self.at)

    return {each.__name__: each for each in (Scaled, Within, Doubled, Capped)}


@in_tensorflow
def test_a_class_that_forgets_its_arguments_is_refused_with_a_way_out() -> None:
    import keras

    import penstock

    two_cpus()
    own = forgetful()
    x, _ = rows(32)
    made = {
        "Scaled.*alpha": lambda: regression(loss=own["Scaled"](alpha=4.0)),
        "Within.*limit": lambda: regression(metrics=[own["Within"](2.0)]),
        "Doubled.*by": lambda: regression(lambda: own["Doubled"](3, by=0.5)),
        "Capped.*at": lambda: regression(
            lambda: keras.layers.Dense(3, kernel_constraint=own["Capped"](5.0))
        ),
    }
    for told, make in made.items():
        with pytest.raises(ConfigError, match=f"{told}.*function without arguments"):
            penstock.train.fit(make(), x, x[:, :1], strategy="mirrored", **SETTINGS)


@in_tensorflow
def test_arguments_with_their_defaults_and_those_of_keras_are_no_reason_to_refuse() -> None:
    import keras

    own = forgetful()
    history = trained_alike(
        lambda: regression(
            lambda: own["Doubled"](3, name="mine", activation="tanh", dtype="float32"),
            lambda: keras.layers.Dense(3, kernel_constraint=own["Capped"]()),
            loss=own["Scaled"](name="mine", reduction="sum", dtype="float32"),
            metrics=[own["Within"](name="near", dtype="float32")],
        )
    )
    assert set(history) == {"loss", "near"}


@in_tensorflow
def test_a_name_that_keras_has_counted_is_no_reason_to_refuse() -> None:
    import keras

    class Scaled(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self, alpha: float = 1.0, beta: float = 2.0) -> None:
            super().__init__()
            self.alpha, self.beta = alpha, beta

        def call(self, y: Any, p: Any) -> Any:
            return self.alpha * self.beta * keras.ops.mean(keras.ops.square(y - p), axis=-1)

        def get_config(self) -> Any:
            return {"alpha": self.alpha}

    trained_alike(lambda: regression(loss=Scaled(0.5)))
