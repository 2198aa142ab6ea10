"""Counts of right answers."""

import tensorflow as tf


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
