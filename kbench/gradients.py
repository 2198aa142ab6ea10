"""What happens to gradients between the backward pass and the update."""

from collections.abc import Callable, Sequence

import tensorflow as tf

Gradients = list[tf.Tensor]


def unscale(gradients: Sequence[tf.Tensor], loss_scale) -> Gradients:
    """Gradients in float32, of the loss before it was scaled.

    Args:
        gradients: gradients of the scaled loss, any float type.
        loss_scale: a float32 scalar, or None for 1.
    """
    gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
    if loss_scale is None:
        return gradients
    inverse = 1.0 / loss_scale
    return [gradient * inverse for gradient in gradients]


def compress(gradients: Sequence[tf.Tensor]) -> Gradients:
    """Gradients in float16 for the way between devices.

    Args:
        gradients: of the scaled loss, any float type: the small ones would
            vanish without the scale, which `unscale` takes out at the end of
            the way.
    """
    return [tf.cast(gradient, tf.float16) for gradient in gradients]


def all_finite(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """A scalar boolean: neither infinity nor NaN in any gradient."""
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(value)) for value in gradients]
    )


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Square root of the sum of squares of all gradients, float32 scalar."""
    squares = tf.add_n([tf.nn.l2_loss(value) for value in gradients])
    return tf.sqrt(2.0 * squares)


def make_clip(
    by_value: float | None, by_norm: float | None
) -> Callable[[Gradients], tuple[Gradients, tf.Tensor | None]]:
    """Makes the function that clips mean gradients.

    Args:
        by_value: bound of each element's magnitude, or None.
        by_norm: bound of the global norm, or None.

    Returns:
        A function of the gradients to the clipped gradients and, with
        `by_norm`, their global norm before the clipping.
    """
    if by_value is not None:
        return lambda gradients: (
            [tf.clip_by_value(g, -by_value, by_value) for g in gradients],
            None,
        )
    if by_norm is None:
        return lambda gradients: (gradients, None)

    def clip(gradients):
        norm = global_norm(gradients)
        factor = by_norm / tf.maximum(norm, by_norm)
        return [gradient * factor for gradient in gradients], norm

    return clip
