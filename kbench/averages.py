"""Exponential moving averages of the weights."""

from collections.abc import Mapping

import tensorflow as tf


def decay_at(decay: float, step: tf.Tensor) -> tf.Tensor:
    """min(decay, (1 + step) / (10 + step)), float32.

    Source: tf.train.ExponentialMovingAverage of TensorFlow 1 with
    num_updates, which lets young averages forget their start.

    Args:
        decay: the decay that is reached in the end, from 0 to 1.
        step: number of updates done before this one, integer scalar.
    """
    step = tf.cast(step, tf.float32)
    return tf.minimum(decay, (1.0 + step) / (10.0 + step))


def average_name(path: str) -> str:
    """Name of the average of the weight of this path."""
    return f'{path}/ExponentialMovingAverage'


class MovingAverages:
    """One average per weight, beside the weights.

    Rule: average -= (1 - decay_at(decay, step)) * (average - weight)

    Args:
        decay: the decay that is reached in the end, from 0 to 1.
        weights: path to variable, batch-norm statistics included.

    Create it in the scope of the strategy, when the weights have their first
    values: the averages start there.

    Attributes:
        variables: name to average, in the order of the weights.
    """

    def __init__(self, decay: float, weights: Mapping[str, tf.Variable]):
        self._decay = decay
        self._weights = list(weights.values())
        self.variables = {
            average_name(path): _create_average(path, weight)
            for path, weight in weights.items()
        }

    def update(self, step: tf.Tensor) -> None:
        """Moves every average towards its weight.

        Args:
            step: number of updates before this one, integer scalar.
        """
        rate = 1.0 - decay_at(self._decay, step)
        for average, weight in zip(
            self.variables.values(), self._weights, strict=True
        ):
            # One fused op: variable -= alpha * delta.
            tf.raw_ops.ResourceApplyGradientDescent(
                var=average.handle,
                alpha=rate,
                delta=tf.convert_to_tensor(average)
                - tf.cast(weight, tf.float32),
            )


def _create_average(path, weight):
    # Beside the weight, wherever that is.
    with tf.device(weight.value.device):
        return tf.Variable(
            lambda: tf.cast(weight, tf.float32),
            trainable=False,
            name=average_name(path),
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
