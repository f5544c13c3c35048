"""A run of `fit`: the model in its place, trained there, and given back."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigError, InputError, WorkerLost
from penstock.model.runtime import keras, tf
from penstock.train.assembly import Assembly
from penstock.train.carry import built, pack, unpack
from penstock.train.history import History
from penstock.train.options import Options
from penstock.train.precision import training_in
from penstock.train.scaling import optimizer_of
from penstock.train.strategies import Place, has_joined, place, resolved

_STAGED = (
    'a model in stages is trained by one process, with strategy="one", and is made outside of the '
    "scope of any other"
)


def run(
    model: Any, data: tuple[Any, Any, Any], validation_data: Any, callbacks: Any, options: Options
) -> History:
    """Train; see `fitting.fit`."""
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
        keras().utils.set_random_seed(options.seed or 0)
    own = model if isinstance(model, keras().Model) else None
    if _is_staged(own):
        _check_unscoped(own)
        options = replace(options, strategy=_of_stages(options.strategy))
    elif own is not None:
        options = replace(options, strategy=_of_model(own, options.strategy))
    kind = resolved(options.strategy)
    if kind == "parameter_server":
        from penstock.train import servers

        return servers.run(model, data, validation_data, callbacks, options)
    # Joining others costs what was made before: the model is packed while it can be read.
    early = pack(own) if own is not None and kind == "multiworker" and not has_joined() else None
    where = place(options.strategy, options.reduce, options.pack_bytes, options.timeout)
    moves = own is not None and (early is not None or own._distribute_strategy is not where.home)
    packed = early or pack(own) if moves else None  # not in a scope that is not its own
    with _peers(where), where.scope():  # variables are made by all workers together
        if own is None:
            function, model = model, built(model)
        elif packed is not None:
            model = unpack(packed)
            if where.home is not None:
                model.jit_compile = False  # as Keras has it in a scope: for `evaluate`, `predict`
    _check(model, validation_data is not None)
    _check_replicas(model, where)
    parts = Assembly(model, where, options)
    moved = own is not None and own is not model
    try:
        with (
            own_errors(),
            _peers(where),
            _eagerly(model, where),
            training_in(model, options.precision),
        ):
            history = parts.trained(data, validation_data, callbacks)
    except BaseException:
        # As in Keras, where Ctrl-C keeps what was learnt until then.
        if moved and where.workers == 1:
            with contextlib.suppress(Exception):
                parts.give_back(own, lost=False)
        raise
    if moved:
        parts.give_back(own, lost=early is not None)
    if where.kind == "multiworker":  # Keras' evaluate and predict break there
        history.model = _moved_out(model) if own is not None else _made_again(function, parts)
    return history


def _moved_out(model: Any) -> Any:
    """The same outside of the scope; itself, where it was made there and cannot be made again."""
    try:
        return unpack(pack(model))
    except ConfigError:
        return model


def _made_again(function: Any, parts: Assembly) -> Any:
    """What the caller's function makes outside of the scope, with what was learnt in it."""
    here = built(function)
    parts.give_back(here, lost=False)
    return here


def _is_staged(model: Any) -> bool:
    from penstock.train.pipeline import Staged

    return isinstance(model, Staged)


def _of_model(model: Any, strategy: Any) -> Any:
    """Nothing else being said, a model that was made in a scope stays there, as in Keras."""
    home = model._distribute_strategy
    alone = strategy == "auto" and resolved(strategy) in ("one", "mirrored")
    return home if alone and home is not None and not tf.distribute.has_strategy() else strategy


def _of_stages(strategy: Any) -> str:
    """The one strategy of a model in stages, which has the devices for itself."""
    alone = resolved(strategy) in ("one", "mirrored") and not tf.distribute.has_strategy()
    if strategy == "one" or (strategy == "auto" and alone):
        return "one"
    got = strategy if isinstance(strategy, str) else type(strategy).__name__
    raise ConfigError(f"{_STAGED}; got strategy {got!r}, which is {resolved(strategy)!r} here")


def _check_unscoped(model: Any) -> None:
    if _is_staged(model) and model._distribute_strategy is not None:
        raise ConfigError(f"{_STAGED}; this one was made in the scope of a strategy")


def _check(model: Any, validated: bool) -> None:
    library = keras()
    if not isinstance(model, library.Model):
        raise ConfigError(
            "model must be a Keras model, or a function without arguments that makes one; "
            f"got {type(model).__name__}"
        )
    _check_unscoped(model)
    if not model.compiled or model.optimizer is None:
        raise ConfigError(f"the model {model.name!r} must be compiled, with an optimizer")
    if type(model).train_step is not library.Model.train_step:
        raise ConfigError(
            f"{type(model).__name__} has a train_step of its own, which cannot be cut into "
            "micro-batches and replicas: override compute_loss in its place, or use Model.fit"
        )
    if validated and type(model).test_step is not library.Model.test_step:
        raise ConfigError(
            f"{type(model).__name__} has a test_step of its own, which validation would not call: "
            "override compute_loss and compute_metrics in its place, or give no validation_data"
        )
    if optimizer_of(model).gradient_accumulation_steps:
        raise ConfigError(
            "the optimizer has gradient_accumulation_steps, which break under a strategy: "
            "use fit(…, accumulate=n)"
        )
    if optimizer_of(model).loss_scale_factor:
        raise ConfigError(
            "the optimizer has a loss_scale_factor, by which it divides gradients: losses are "
            'scaled here where that is needed, with fit(…, precision="mixed_float16")'
        )


def overwrites(model: Any) -> bool:
    """Whether its optimizer puts the averages in the weights' place, every so many steps."""
    optimizer = optimizer_of(model)
    return bool(optimizer.use_ema and optimizer.ema_overwrite_frequency)


def _check_replicas(model: Any, where: Place) -> None:
    if where.replicas > 1 and overwrites(model):
        raise ConfigError(
            "the optimizer has an ema_overwrite_frequency, which breaks where there are several "
            f"replicas (here {where.replicas}): leave it out, and use the callback SwapEMAWeights"
        )


@contextlib.contextmanager
def _eagerly(model: Any, where: Place) -> Iterator[None]:
    """A model that was compiled with `run_eagerly` runs as Python, to be looked into."""
    if not model.run_eagerly:
        yield
        return
    if where.workers > 1:
        warnings.warn(
            "run_eagerly has no effect with several workers: look into the model with one",
            RuntimeWarning,
            stacklevel=2,
        )
        yield
        return
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config", UserWarning)  # tf.data
            yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def _peers(where: Place) -> Iterator[None]:
    """A lost worker is told as such, on the others."""
    try:
        yield
    except (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.DeadlineExceededError,
        tf.errors.CancelledError,
    ) as error:
        if where.workers == 1:
            raise
        raise WorkerLost(
            f"worker {where.worker} of {where.workers} has lost another one in the middle of "
            f"training: {_gist(str(error))}"
        ) from error


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """What was said of the data while a graph was run is told as such: TensorFlow buries it."""
    try:
        yield
    except tf.errors.OpError as error:
        told = re.search(r"^InputError: (.+)$", str(error), re.MULTILINE)
        if told is None:
            raise
        raise InputError(told[1]) from error


def _gist(text: str) -> str:
    """What an error of a graph says, without where the graph was made."""
    aside = ("Graph execution error", "Detected at node", "File ", "[[{{node", "Additional GRPC")
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(aside))[:500]
