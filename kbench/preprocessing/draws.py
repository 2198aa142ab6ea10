"""The random numbers of one image, all made from its seed."""

import tensorflow as tf

# How many uniform numbers one image may use.
NUM_DRAWS = 8
FLIP, BRIGHTNESS, SATURATION, HUE, CONTRAST, TOP, LEFT = range(7)
# Sets these numbers apart from those of the box sampler.
_STREAM = 0x5DEECE66D


def make_draws(seed: tf.Tensor) -> tf.Tensor:
    """Returns the uniform numbers [0, 1) of one image, float32 (NUM_DRAWS,).

    Args:
        seed: int64 (2,), distinct for every image of a run.
    """
    return tf.random.stateless_uniform(
        [NUM_DRAWS], seed + tf.constant([_STREAM, 0], tf.int64)
    )


def randint(draw: tf.Tensor, limit: tf.Tensor | int) -> tf.Tensor:
    """Maps a uniform draw to 0..limit-1, int32."""
    scaled = tf.cast(draw * tf.cast(limit, tf.float32), tf.int32)
    return tf.minimum(scaled, limit - 1)
