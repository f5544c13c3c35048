"""Trains the demo's network: `python -m penstock.cli.demo.training`, started by `comparison`.

A small convolutional network on scikit-learn's bundled digits (1,797 images of 8 × 8 pixels), of
which a quarter is held out. Says so after each epoch; writes the network, and the held-out digits
with its answers to them; says what came out.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from penstock.cli.demo.child import Parent, leave
from penstock.cli.demo.machine import need_of
from penstock.model.runtime import keras, tf

_SEED = 1


def main() -> None:
    """Its whole life."""
    parent = Parent()
    settings = parent.settings
    keras().utils.set_random_seed(_SEED)
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    seen, unseen, seen_labels, labels = train_test_split(
        images, digits.target, test_size=0.25, random_state=_SEED, stratify=digits.target
    )
    network = _network(images.shape[1:])

    def tell(epoch: int, logs: dict[str, Any]) -> None:
        parent.say({"epoch": epoch + 1, "accuracy": float(logs["accuracy"])})

    network.fit(
        seen,
        seen_labels,
        epochs=settings["epochs"],
        verbose=0,
        callbacks=[keras().callbacks.LambdaCallback(on_epoch_end=tell)],
    )
    answers = network.predict(unseen, batch_size=len(unseen), verbose=0)
    network.save(settings["network"])
    np.savez(settings["digits"], images=unseen, answers=answers)
    parent.say(
        {
            "network": {
                "weights": network.count_params(),
                "epochs": settings["epochs"],
                "trained_on": len(seen),
                "held_out": len(unseen),
                "accuracy": float((answers.argmax(axis=1) == labels).mean()),
            },
            "versions": {"tensorflow": tf.__version__, "keras": keras().__version__},
            "need": need_of(os.getpid()),
        }
    )
    leave()


def _network(shape: tuple[int, ...]) -> Any:
    """Two convolutions and two dense layers, as one begins with for small images."""
    layers = keras().layers
    network = keras().Sequential(
        [
            keras().Input(shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network


if __name__ == "__main__":
    main()
