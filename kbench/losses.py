"""Losses of classification, in float32 whatever the logits are."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Last part of the path of a variable that L2 leaves alone.
_EXEMPT = frozenset({'bias', 'beta', 'gamma', 'offset', 'scale'})


def softmax_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Cross entropy of each image.

    Args:
        logits: (batch, num_classes), any float type.
        labels: (batch,) integers, or (batch, num_classes) probabilities.
        label_smoothing: each target becomes target * (1 - label_smoothing) +
            label_smoothing / num_classes.

    Returns:
        (batch,) float32.
    """
    logits = tf.cast(logits, tf.float32)
    if labels.shape.rank == 1 and label_smoothing == 0:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits
        )
    num_classes = logits.shape[-1]
    if labels.shape.rank == 1:
        labels = tf.one_hot(labels, num_classes)
    if label_smoothing:
        share = label_smoothing / num_classes
        labels = labels * (1 - label_smoothing) + share
    return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def make_classification_loss(
    *, label_smoothing: float, aux_loss_weight: float
) -> Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor]:
    """Makes `loss(outputs, labels)` for logits and auxiliary logits.

    Args:
        label_smoothing: of every head.
        aux_loss_weight: weight of each auxiliary head.

    Returns:
        A function of [logits, aux_logits...] and labels to a float32 scalar.
    """

    def loss(outputs, labels):
        total, *auxiliary = [
            tf.reduce_mean(
                softmax_cross_entropy(logits, labels, label_smoothing)
            )
            for logits in outputs
        ]
        for value in auxiliary:
            total += aux_loss_weight * value
        return total

    return loss


def is_decayed(path: str, decay_all: bool = False) -> bool:
    """Whether weight decay applies to the variable of this path.

    Biases and the scales and offsets of normalisations are exempt unless
    `decay_all`.
    """
    return decay_all or path.rpartition('/')[2] not in _EXEMPT


class L2:
    """factor / 2 * sum of squares, over the weights that decay.

    Its gradient, factor * w, is added to gradients that are reduced already:
    once whatever the number of replicas, never in float16, and without
    keeping a copy of the weights through the backward pass.

    Args:
        factor: the weight decay; 0 for none.
        decayed: per weight, whether it counts.
    """

    def __init__(self, factor: float = 0.0, decayed: Sequence[bool] = ()):
        self._factor = factor
        self._decayed = list(decayed) if factor else []

    def loss(self, weights: Sequence[tf.Tensor]) -> tf.Tensor:
        """The term of the loss, a float32 scalar."""
        used = [
            tf.nn.l2_loss(tf.cast(weight, tf.float32))
            for weight, counts in zip(weights, self._decayed, strict=False)
            if counts
        ]
        if not used:
            return tf.zeros([], tf.float32)
        return self._factor * tf.add_n(used)

    def add_gradients(
        self, gradients: Sequence[tf.Tensor], weights: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Gradients of the loss with the term, float32."""
        if not self._decayed:
            return list(gradients)
        return [
            gradient + self._factor * tf.cast(weight, tf.float32)
            if counts
            else gradient
            for gradient, weight, counts in zip(
                gradients, weights, self._decayed, strict=True
            )
        ]
