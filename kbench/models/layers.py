"""What the model families share: each function adds one or two layers.

`initializer` is either the name of a Keras initializer or a float, the
standard deviation of a normal distribution; `name` begins the names of the
variables, which checkpoints are read by. Everything follows Keras's image
data format and dtype policy of the moment.
"""

import math

import keras
import tensorflow as tf

from kbench.models import batch_norm as batch_norm_layer
from kbench.models import layer_types


def spatial_size(x):
    """(height, width) of a 4-D tensor in the present data format."""
    shape = tuple(x.shape)
    return shape[1:3] if layer_types.channel_axis() == 3 else shape[2:4]


def num_channels(x):
    """Number of channels of a 4-D tensor."""
    return x.shape[layer_types.channel_axis()]


def conv(x, filters, kernel, strides=1, *, name, **options):
    """Convolution; the options are those of `Conv`."""
    return layer_types.Conv(filters, kernel, strides, name=name, **options)(x)


def conv_bn(
    x,
    filters,
    kernel,
    strides=1,
    *,
    name,
    norm,
    activation='relu',
    **options,
):
    """Convolution without bias, batch norm, activation.

    `norm` holds the options of `BatchNorm`; `options` are those of `Conv`.
    """
    x = layer_types.Conv(
        filters, kernel, strides, name=f'{name}_conv', **options
    )(x)
    return batch_norm_layer.BatchNorm(
        name=f'{name}_bn', activation=activation, **norm
    )(x)


def batch_norm(x, *, name, activation=None, **norm):
    """Batch norm, then an activation."""
    return batch_norm_layer.BatchNorm(name=name, activation=activation, **norm)(
        x
    )


def max_pool(x, size, strides, padding='valid', *, name):
    """Maximum over windows."""
    return layer_types.Pool('max', size, strides, padding, name=name)(x)


def avg_pool(x, size, strides, padding='valid', *, name):
    """Average over windows, padding left out of it."""
    return layer_types.Pool('avg', size, strides, padding, name=name)(x)


def activation(x, kind, *, name):
    """An activation on its own."""
    return layer_types.Function(
        layer_types.ACTIVATIONS[kind], x.shape[1:], name=name
    )(x)


def add(tensors, *, name, activation=None):
    """Sum, then an activation."""
    return layer_types.Add(activation, name=name)(tensors)


def concat(tensors, *, name):
    """Concatenation of the channels."""
    return keras.layers.Concatenate(axis=layer_types.channel_axis(), name=name)(
        tensors
    )


def subsample(x, strides, *, name, channels=None):
    """Every `strides`-th pixel, and zero channels on both sides.

    `channels`: how many channels there shall be; None adds none.
    """
    axis = layer_types.channel_axis()
    sides = [(0, 0)] * 4
    if channels is not None:
        missing = channels - num_channels(x)
        sides[axis] = (missing // 2, missing - missing // 2)

    def function(t):
        pixels = slice(None, None, strides)
        t = t[:, pixels, pixels] if axis == 3 else t[:, :, pixels, pixels]
        return tf.pad(t, sides) if channels is not None else t

    height, width = (math.ceil(size / strides) for size in spatial_size(x))
    depth = num_channels(x) if channels is None else channels
    shape = (height, width, depth) if axis == 3 else (depth, height, width)
    return layer_types.Function(function, shape, name)(x)


def response_norm(x, *, name):
    """Local response normalisation over nine channels, in float32.

    The constants are those of the TensorFlow CIFAR-10 tutorial.
    """

    moves = layer_types.channel_axis() == 1

    def function(t):
        y = tf.cast(t, tf.float32)
        if moves:
            y = tf.transpose(y, (0, 2, 3, 1))
        y = tf.nn.lrn(y, depth_radius=4, bias=1, alpha=0.001 / 9, beta=0.75)
        if moves:
            y = tf.transpose(y, (0, 3, 1, 2))
        return tf.cast(y, t.dtype)

    return layer_types.Function(function, x.shape[1:], name)(x)


def global_mean(x, *, name='mean'):
    """(batch, h, w, c) to (batch, c)."""
    axes = (1, 2) if layer_types.channel_axis() == 3 else (2, 3)
    channels = num_channels(x)

    def function(t):
        if t.dtype != tf.float16:
            return tf.reduce_mean(t, axes)
        # Sums in float16 overflow, and on CPUs they are summed in it.
        return tf.cast(tf.reduce_mean(tf.cast(t, tf.float32), axes), t.dtype)

    return layer_types.Function(function, (channels,), name)(x)


def flatten(x, *, name='flatten'):
    """(batch, h, w, c) to (batch, h x w x c), the same order in NCHW."""
    size = math.prod(x.shape[1:])
    moves = len(x.shape) == 4 and layer_types.channel_axis() == 1

    def function(t):
        if moves:
            t = tf.transpose(t, (0, 2, 3, 1))
        return tf.reshape(t, (-1, size))

    return layer_types.Function(function, (size,), name)(x)


def dense(x, units, activation='relu', *, name, **options):
    """A hidden dense layer; the options are those of `Dense`."""
    return layer_types.Dense(units, activation, name=name, **options)(x)


def dropout(x, rate, *, name, whole_images=False):
    """Dropout in training."""
    return layer_types.Dropout(rate, whole_images, name=name)(x)


def logits(x, num_classes, *, name='logits', initializer='lecun_normal'):
    """The last dense layer: float32 logits (batch, num_classes)."""
    return layer_types.Dense(
        num_classes, None, 0.0, initializer, float32_output=True, name=name
    )(x)
