"""What a step measures."""

import math
from collections.abc import Sequence

import tensorflow as tf

# Columns of the float32 vector of metrics that every step returns: the total
# loss, the accuracies of the batch (NaN where they are not measured), whether
# the gradients were finite, the loss scale of the step, and the global norm
# of the gradients before clipping (NaN where it is not measured).
LOSS, TOP_1, TOP_5, FINITE, LOSS_SCALE, GRADIENT_NORM = range(6)
NUM_COLUMNS = GRADIENT_NORM + 1


def vector(
    measured: Sequence[tf.Tensor],
    finite: tf.Tensor | float,
    loss_scale: tf.Tensor | None,
    gradient_norm: tf.Tensor,
    more: tf.Tensor | None = None,
) -> tf.Tensor:
    """Packs what a training step measured, float32 in the order above.

    Args:
        measured: the loss, and the accuracies where they are measured.
        finite: 1.0 where the update was made.
        loss_scale: of the step, None for 1.
        gradient_norm: NaN where it is not measured.
        more: float32 numbers that follow.
    """
    scale = 1.0 if loss_scale is None else loss_scale
    missing = [math.nan] * (FINITE - len(measured))
    found = tf.stack([*measured, *missing, finite, scale, gradient_norm])
    return found if more is None else tf.concat([found, more], axis=0)


def top_k(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """1.0 where the label is among the k highest logits, else 0.0.

    Not finite logits count as wrong. With fewer than k classes every finite
    answer is right.

    Args:
        logits: (batch, num_classes), any float type.
        labels: (batch,) integers, or (batch, num_classes) probabilities of
            which the highest counts.
        k: how many answers an image has.

    Returns:
        (batch,) float32.
    """
    if labels.shape.rank == 2:
        labels = tf.argmax(labels, axis=-1, output_type=tf.int32)
    right = tf.math.in_top_k(
        targets=labels,
        predictions=tf.cast(logits, tf.float32),
        k=min(k, logits.shape[-1]),
    )
    return tf.cast(right, tf.float32)


def accuracies(
    outputs: Sequence[tf.Tensor], labels: tf.Tensor
) -> list[tf.Tensor]:
    """Top-1 and top-5 accuracy of a batch, float32 scalars.

    Args:
        outputs: logits first, as a model returns them.
        labels: as `top_k`.
    """
    return [tf.reduce_mean(top_k(outputs[0], labels, k)) for k in (1, 5)]
