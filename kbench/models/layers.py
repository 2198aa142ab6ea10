"""What the model families share: each function adds one or two layers.

`initializer` is either the name of a Keras initializer or a float, the
standard deviation of a normal distribution; `name` begins the names of the
variables, which checkpoints are read by. Everything follows Keras's image
data format and dtype policy of the moment.
"""

import functools
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


def conv(x, filters, kernel, strides=1, padding='same', *, name, **options):
    """Convolution; the options are those of `Conv`."""
    options['padding'] = padding
    return layer_types.Conv(filters, kernel, strides, name=name, **options)(x)


def depthwise_conv(x, kernel, strides=1, *, name, **options):
    """One filter a channel; the options are those of `DepthwiseConv`."""
    return layer_types.DepthwiseConv(kernel, strides, name=name, **options)(x)


def conv_bn(
    x,
    filters,
    kernel,
    strides=1,
    padding='same',
    *,
    name,
    norm,
    activation='relu',
    **options,
):
    """Convolution without bias, batch norm, activation.

    `norm` holds the options of `BatchNorm`; `options` are those of `Conv`.
    """
    options['padding'] = padding
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
        layer_types.ACTIVATIONS[kind],
        x.shape[1:],
        name=name,
        plain=functools.partial(keras.layers.Activation, kind),
    )(x)


def add(tensors, *, name, activation=None):
    """Sum, then an activation."""
    return layer_types.Add(activation, name=name)(tensors)


def concat(tensors, *, name):
    """Concatenation of the channels."""
    return keras.layers.Concatenate(axis=layer_types.channel_axis(), name=name)(
        tensors
    )


def subsample(x, strides, *, name, channels=None, shift=0):
    """Every `strides`-th pixel, and zero channels on both sides.

    `channels`: how many channels there shall be; None adds none. `shift`:
    the first pixel taken; the size is that of shift 0, filled with zeros.
    """
    axis = layer_types.channel_axis()
    sides = [(0, 0)] * 4
    if channels is not None:
        missing = channels - num_channels(x)
        sides[axis] = (missing // 2, missing - missing // 2)
    rows = 1 if axis == 3 else 2
    new_size = [math.ceil(size / strides) for size in spatial_size(x)]
    for offset, size in enumerate(spatial_size(x)):
        taken = math.ceil((size - shift) / strides)
        sides[rows + offset] = (0, new_size[offset] - taken)

    def function(t):
        pixels = slice(shift, None, strides)
        t = t[:, pixels, pixels] if axis == 3 else t[:, :, pixels, pixels]
        return tf.pad(t, sides) if any(map(any, sides)) else t

    depth = num_channels(x) if channels is None else channels
    shape = (*new_size, depth) if axis == 3 else (depth, *new_size)

    def plain(t):
        t = keras.layers.Cropping2D(((shift, 0), (shift, 0)))(t)
        t = keras.layers.MaxPooling2D(1, strides)(t)
        return keras.ops.pad(t, sides) if any(map(any, sides)) else t

    return layer_types.Function(function, shape, name, plain=lambda: plain)(x)


def pad_for_stride_2(x, *, name):
    """The zeros that 'same' adds for a 3x3 window with stride 2."""
    axis = layer_types.channel_axis()
    sides = [(size % 2, 1) for size in spatial_size(x)]
    sides.insert(2 if axis == 3 else 0, (0, 0))
    shape = [
        size + sum(side) for size, side in zip(x.shape[1:], sides, strict=True)
    ]
    return layer_types.Function(
        lambda t: tf.pad(t, [(0, 0), *sides]),
        shape,
        name,
        plain=functools.partial(keras.layers.ZeroPadding2D, sides[:2]),
    )(x)


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

    def plain(t):
        squares = keras.ops.square(t)
        squares = keras.ops.pad(squares, [(0, 0)] * 3 + [(4, 4)])
        near = sum(squares[..., i : i + t.shape[-1]] for i in range(9))
        return t / (1 + 0.001 / 9 * near) ** 0.75

    return layer_types.Function(
        function, x.shape[1:], name, plain=lambda: plain
    )(x)


def branches(x, rows, *, name, conv):
    """An inception module: branches side by side, their ends concatenated.

    Args:
        x: input of every branch.
        rows: a branch each: the steps one after the other. A step is
            ('max' or 'avg', size, strides, padding), or a list of rows
            (the branch splits once more), or the arguments of `conv`.
        name: what the names of the steps begin with.
        conv: `conv(x, *step, name=...)` adds a convolution.
    """
    ends = []
    for row_index, steps in enumerate(rows, 1):
        y = x
        for index, step in enumerate(steps, 1):
            step_name = f'{name}_{row_index}_{index}'
            if isinstance(step, list):
                y = branches(y, step, name=step_name, conv=conv)
            elif step[0] in ('max', 'avg'):
                y = layer_types.Pool(*step, name=f'{step_name}_pool')(y)
            else:
                y = conv(y, *step, name=step_name)
        ends.append(y)
    return concat(ends, name=name)


def auxiliary_logits(x, num_classes, *, norm):
    """The auxiliary classifier of the inception networks and NASNet.

    A 5x5 average with stride 3, 128 channels, 768 over the whole image.
    """
    window = min(5, *spatial_size(x))
    x = avg_pool(x, window, 3, name='aux_pool')
    x = conv_bn(x, 128, 1, norm=norm, name='aux_1')
    size = spatial_size(x)
    x = conv_bn(x, 768, size, 1, 'valid', norm=norm, name='aux_2')
    return logits(
        flatten(x, name='aux_flatten'), num_classes, name='aux_logits'
    )


def global_mean(x, *, name='mean'):
    """(batch, h, w, c) to (batch, c)."""
    axes = (1, 2) if layer_types.channel_axis() == 3 else (2, 3)
    channels = num_channels(x)

    def function(t):
        if t.dtype != tf.float16:
            return tf.reduce_mean(t, axes)
        # Sums in float16 overflow, and on CPUs they are summed in it.
        return tf.cast(tf.reduce_mean(tf.cast(t, tf.float32), axes), t.dtype)

    return layer_types.Function(
        function,
        (channels,),
        name,
        plain=keras.layers.GlobalAveragePooling2D,
    )(x)


def flatten(x, *, name='flatten'):
    """(batch, h, w, c) to (batch, h x w x c), the same order in NCHW."""
    size = math.prod(x.shape[1:])
    moves = len(x.shape) == 4 and layer_types.channel_axis() == 1

    def function(t):
        if moves:
            t = tf.transpose(t, (0, 2, 3, 1))
        return tf.reshape(t, (-1, size))

    return layer_types.Function(
        function,
        (size,),
        name,
        plain=keras.layers.Flatten,
    )(x)


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
