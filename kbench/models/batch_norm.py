"""Batch normalisation in one fused operation."""

import keras
import tensorflow as tf

from kbench.models import layer_types


class BatchNorm(keras.layers.Layer):
    """Batch normalisation of 4-D images in one fused operation.

    Takes float32, float16 and bfloat16 images; scale, offset and statistics
    are float32 in every policy. In training the operation itself moves the
    statistics: new = momentum x old + (1 - momentum) x batch, with the
    unbiased variance of the batch, as TensorFlow 1 has it. The statistics
    are the first replica's.

    Attributes:
        gamma: scale, or None.
        beta: offset, or None.
    """

    def __init__(
        self,
        momentum=0.9,
        epsilon=1e-5,
        scale=True,
        center=True,
        activation=None,
        axis=None,
        name=None,
    ):
        """`axis` of the channels; None = the present data format's."""
        super().__init__(name=name)
        self.momentum = momentum
        self.epsilon = epsilon
        self._scale = scale
        self._center = center
        self._activation = layer_types.ACTIVATIONS[activation]
        self._axis = layer_types.channel_axis() if axis is None else axis % 4

    def build(self, input_shape):
        """Creates scale, offset and statistics, float32 (channels,)."""
        channels = input_shape[self._axis]

        def add(name, value, trainable):
            return self.add_weight(
                name=name,
                shape=(channels,),
                initializer=value,
                # Never float16, and never cast to the compute dtype.
                dtype='float32',
                autocast=False,
                trainable=trainable,
                aggregation='mean' if trainable else 'only_first_replica',
            )

        self.gamma = add('gamma', 'ones', True) if self._scale else None
        self.beta = add('beta', 'zeros', True) if self._center else None
        self.moving_mean = add('moving_mean', 'zeros', False)
        self.moving_variance = add('moving_variance', 'ones', False)
        self._channels = channels

    def call(self, inputs, training=False, mask=None):
        """Normalizes images; in training by the batch's own statistics."""
        del mask  # Keras replays it where this layer replaces its own.
        if self.gamma is None:
            scale = tf.ones((self._channels,))
        else:
            scale = tf.convert_to_tensor(self.gamma)
        if self.beta is None:
            offset = tf.zeros((self._channels,))
        else:
            offset = tf.convert_to_tensor(self.beta)
        training = bool(training) and self.trainable
        outputs = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=scale,
            offset=offset,
            mean=tf.convert_to_tensor(self.moving_mean),
            variance=tf.convert_to_tensor(self.moving_variance),
            epsilon=self.epsilon,
            exponential_avg_factor=1.0 - self.momentum if training else 1.0,
            data_format='NHWC' if self._axis == 3 else 'NCHW',
            is_training=training,
        )
        if training:
            self.moving_mean.assign(outputs.batch_mean)
            self.moving_variance.assign(outputs.batch_variance)
        return self._activation(outputs.y)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)
