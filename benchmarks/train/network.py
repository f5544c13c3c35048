"""The networks that are trained, compiled as a user compiles them, and data for them."""

from typing import Any

import numpy as np

SIDES = {"resnet50": 224, "tiny": 32}
CLASSES = {"resnet50": 1000, "tiny": 10}


def compiled(kind: str, precision: str, jit: bool | str) -> Any:
    """Takes bytes; the scaling is in it. The head stays in float32, as Keras advises."""
    import keras

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(precision)
    layers, side = keras.layers, SIDES[kind]
    image = keras.Input((side, side, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, -1.0)(image)
    body = _tiny(side) if kind == "tiny" else _resnet50(side)
    answer = layers.Dense(CLASSES[kind], dtype="float32")(body(x))
    keras.config.set_dtype_policy("float32")
    model = keras.Model(image, answer)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit,
    )
    return model


def data(kind: str, rows: int) -> tuple[Any, Any]:
    """Images and classes, the same ones each time."""
    random = np.random.default_rng(0)
    side = SIDES[kind]
    images = random.integers(0, 256, (rows, side, side, 3), dtype=np.uint8)
    return images, random.integers(0, CLASSES[kind], rows).astype(np.int32)


def _resnet50(side: int) -> Any:
    import keras

    return keras.applications.ResNet50(
        include_top=False, weights=None, input_shape=(side, side, 3), pooling="avg"
    )


def _tiny(side: int) -> Any:
    import keras

    layers = keras.layers
    image = keras.Input((side, side, 3))
    x = layers.Conv2D(16, 3, padding="same")(image)
    for _ in range(4):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([x, layers.Conv2D(16, 3, padding="same")(y)])
    return keras.Model(image, layers.GlobalAveragePooling2D()(x))
