"""A model that gives NaN for the batch whose mean is `bad_mean`."""

import keras
import tensorflow as tf

bad_mean = 0.0


class _Poison(keras.layers.Layer):
    def call(self, inputs):
        logits, images = inputs
        is_bad = tf.abs(tf.reduce_mean(images) - bad_mean) < 1e-6
        return tf.where(is_bad, float('nan'), logits)


def build(images, num_classes):
    """One dense layer over the pixels."""
    pixels = keras.layers.Flatten(name='pixels')(images)
    logits = keras.layers.Dense(num_classes, name='logits')(pixels)
    return _Poison(name='poison')([logits, images])


build.image_size = 8
