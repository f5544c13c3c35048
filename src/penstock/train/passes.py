"""A model forward over a piece, its loss, and its metrics: for training and for validation."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError, InputError
from penstock.model.runtime import keras, tf
from penstock.train.intake import is_none
from penstock.train.tally import Tally


def forward(
    model: Any, x: Any, y: Any, weight: Any, training: bool, through: Any = None
) -> tuple[Any, Any]:
    """The outputs and the loss. `through` computes the outputs, where the model does not itself."""
    check_targets(model, y)
    call = model if through is None else through
    y_pred = call(x, training=training) if call._call_has_training_arg else call(x)
    loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=training)
    if loss.shape.rank:
        raise ConfigError(
            "the loss of a batch must be one number, with which weights are changed; got one of "
            f"shape {loss.shape}: give it a reduction such as 'sum_over_batch_size'"
        )
    return y_pred, loss


def check_targets(model: Any, y: Any) -> None:
    """Refuse data without targets (or their spec), where the loss compares with some."""
    own = type(model).compute_loss is not keras().Model.compute_loss
    if is_none(y) and model._compile_loss is not None and not own:
        raise InputError(
            "y: expected targets for the loss that the model was compiled with; got none"
        )


def count_in(
    model: Any,
    tally: Tally,
    x: Any,
    y: Any,
    y_pred: Any,
    weight: Any,
    count: Any,
    before: list[Any],
) -> None:
    """Update the metrics, but for the loss: a piece does not know what its batch's is.

    `before`: the counters as they were, where padding must not count.
    """
    if type(model).compute_metrics is not keras().Model.compute_metrics:
        told = model.compute_metrics(x, y, y_pred, sample_weight=weight)
        _refuse_more(told, model)
    elif model._compile_metrics is not None:
        model._compile_metrics.update_state(y, y_pred, sample_weight=weight)
    if before:
        tally.weigh(before, count)


def _refuse_more(told: Any, model: Any) -> None:
    """What is no metric is known of one piece alone, and cannot be added up."""
    more = sorted(set(told or ()) - set(model.get_metrics_result()))
    if more:
        raise ConfigError(
            f"compute_metrics of {type(model).__name__} returns {', '.join(map(repr, more))}, "
            "which is none of the model's metrics: keep it in a keras.metrics.Metric that is an "
            "attribute of the model, so that it is counted over all pieces"
        )


def replica_number() -> int:
    """Which replica is being traced: what XLA compiles is each replica's own."""
    context = tf.distribute.get_replica_context()
    known = tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if known is None else int(known)
