"""The ways to get a whole data set through the network, each as people write it.

Each reads, decodes, predicts and writes `out.npy`, rows in order. What is measured begins when the
model is loaded and has run once, and ends when the output is on the disk.
"""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.offline.rows import ARRAY, FILES, NETWORK, SIDE

_BATCH = 32
Result = dict[str, Any]


def names(folder: Path, rows: int) -> list[str]:
    """The files, in order."""
    return [str(path) for path in sorted((folder / FILES).iterdir())[:rows]]


def decoded(path: str) -> Any:
    """A file as Penstock decodes it: upright, RGB, bilinear."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
        return np.asarray(upright.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _loaded(folder: Path) -> Any:
    import keras

    return keras.models.load_model(folder / NETWORK)


def keras_predict(folder: Path, data: str, rows: int) -> Result:
    """`model.predict` on a `tf.data` pipeline, in parallel and with prefetching."""
    import tensorflow as tf

    model = _loaded(folder)
    model.predict(np.zeros((_BATCH, SIDE, SIDE, 3), np.uint8), verbose=0)
    began = time.perf_counter()
    if data == "npy":
        images = np.load(folder / ARRAY, mmap_mode="r")[:rows]
        spec = tf.TensorSpec((None, SIDE, SIDE, 3), tf.uint8)

        def batches() -> Any:
            for start in range(0, rows, _BATCH):
                yield images[start : start + _BATCH]

        dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    else:

        def load(path: Any) -> Any:
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
            return tf.cast(tf.image.resize(image, (SIDE, SIDE)), tf.uint8)

        dataset = tf.data.Dataset.from_tensor_slices(names(folder, rows))
        dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(_BATCH)
    answers = model.predict(dataset.prefetch(tf.data.AUTOTUNE), verbose=0)
    np.save(folder / "out.npy", answers)
    return {"rows": len(answers), "seconds": time.perf_counter() - began}


def _load_batches(folder: Path, data: str, rows: int, jobs: Any, batches: Any) -> None:
    images = np.load(folder / ARRAY, mmap_mode="r") if data == "npy" else None
    files = [] if data == "npy" else names(folder, rows)
    while (start := jobs.get()) is not None:
        stop = min(start + _BATCH, rows)
        if images is not None:
            batches.put((start, np.asarray(images[start:stop])))
        else:
            batches.put((start, np.stack([decoded(path) for path in files[start:stop]])))


def queue_recipe(folder: Path, data: str, rows: int) -> Result:
    """Loader processes, a bounded queue of batches, and a `tf.function` that empties it."""
    context = multiprocessing.get_context("spawn")
    jobs, batches = context.Queue(), context.Queue(16)
    loaders = [
        context.Process(target=_load_batches, args=(folder, data, rows, jobs, batches))
        for _ in range(os.cpu_count() or 1)
    ]
    for loader in loaders:
        loader.start()
    import tensorflow as tf

    model = _loaded(folder)
    call = tf.function(lambda batch: model(batch, training=False))
    call(tf.zeros((_BATCH, SIDE, SIDE, 3), tf.uint8))
    began = time.perf_counter()
    starts = range(0, rows, _BATCH)
    for start in [*starts, *([None] * len(loaders))]:
        jobs.put(start)
    answers = np.empty((rows, 1000), np.float32)
    for _ in starts:
        start, batch = batches.get()
        answers[start : start + len(batch)] = call(batch).numpy()
    np.save(folder / "out.npy", answers)
    seconds = time.perf_counter() - began
    for loader in loaders:
        loader.join()
    return {"rows": rows, "seconds": seconds}


class _Actor:
    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        model = _loaded(Path(folder))
        self._call = tf.function(lambda batch: model(batch, training=False))
        self._call(tf.zeros((_BATCH, SIDE, SIDE, 3), tf.uint8))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        began = time.time()
        answers = self._call(batch["image"]).numpy()
        return {"row": batch["row"], "answer": answers, "began": np.full(len(answers), began)}


def ray_data(folder: Path, data: str, rows: int) -> Result:
    """Ray Data: `map_batches` with one actor. Its start does not count: time begins with the
    first batch that the model gets."""
    import ray

    ray.init(log_to_driver=False, include_dashboard=False)
    if data == "npy":
        images = np.load(folder / ARRAY, mmap_mode="r")

        def read(batch: dict[str, Any]) -> dict[str, Any]:
            return {"row": batch["id"], "image": np.asarray(images[batch["id"]])}
    else:
        files = names(folder, rows)

        def read(batch: dict[str, Any]) -> dict[str, Any]:
            found = np.stack([decoded(files[row]) for row in batch["id"]])
            return {"row": batch["id"], "image": found}

    dataset = ray.data.range(rows).map_batches(read, batch_size=_BATCH)
    dataset = dataset.map_batches(
        _Actor, fn_constructor_args=(str(folder),), batch_size=_BATCH, concurrency=1
    )
    answers = np.empty((rows, 1000), np.float32)
    began = np.inf
    for batch in dataset.iter_batches(batch_size=_BATCH):
        answers[batch["row"]] = batch["answer"]
        began = min(began, float(batch["began"].min()))
    np.save(folder / "out.npy", answers)
    seconds = time.time() - began
    ray.shutdown()
    return {"rows": rows, "seconds": seconds}


def penstock_predict(folder: Path, data: str, rows: int) -> Result:
    """`penstock.predict`, with what it does by itself."""
    import penstock

    source: Any = str(folder / ARRAY) if data == "npy" else names(folder, rows)
    if data == "npy":
        source = np.load(folder / ARRAY, mmap_mode="r")[:rows]
    report = penstock.predict(str(folder / NETWORK), source, str(folder / "out.npy"), restart=True)
    note = f"{report.advice}; {report.loaders} loaders, {report.plan['mode']}"
    seconds = report.seconds + report.finishing
    return {"rows": report.written, "seconds": seconds, "note": note, "shares": report.shares}


WAYS = {
    "penstock.predict": penstock_predict,
    "model.predict with tf.data": keras_predict,
    "multiprocessing.Queue": queue_recipe,
    "Ray Data map_batches": ray_data,
}
