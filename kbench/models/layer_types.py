"""The layer classes beneath `layers`.

Every layer keeps to few and fused TensorFlow operations, knows its output
shape (so that building a model traces nothing), and follows Keras's image
data format and dtype policy at the time it is created. Variables are only
written with `assign`, so that `keras.StatelessScope` captures the writes.
"""

import math

import keras
import tensorflow as tf

from kbench import errors

ACTIVATIONS = {
    None: lambda x: x,
    'relu': tf.nn.relu,
    'relu6': tf.nn.relu6,
}


def channel_axis():
    """Axis of the channels of a 4-D tensor in the present data format."""
    return 3 if keras.config.image_data_format() == 'channels_last' else 1


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def make_initializer(value):
    # A new object each time: one Keras initializer gives every layer that
    # shares it the same random values.
    if isinstance(value, float):
        return keras.initializers.RandomNormal(stddev=value)
    return keras.initializers.get(value)


class _SpatialLayer(keras.layers.Layer):
    """What convolutions and pools have in common: a window that slides.

    `padding` is 'same' (TensorFlow's, uneven for even sizes), 'valid', or
    'fixed': (k - 1) // 2 zeros before and k // 2 behind, whatever the
    size, as Caffe, PyTorch and the residual networks have it.
    """

    def __init__(self, kernel, strides, padding, name):
        super().__init__(name=name)
        self.kernel_size = _pair(kernel)
        self.strides = _pair(strides)
        if padding == 'fixed' and self.strides == (1, 1):
            padding = 'same'
        self.padding = padding
        self._channel_axis = channel_axis()
        self.data_format = 'NHWC' if self._channel_axis == 3 else 'NCHW'

    def _order(self, batch, spatial, channels):
        if self._channel_axis == 3:
            return (batch, *spatial, channels)
        return (batch, channels, *spatial)

    def _windows(self, operation, inputs, *kernel):
        """Runs a TensorFlow operation with this layer's window."""
        padding = self.padding.upper()
        if self.padding == 'fixed':
            # Not the operation's own explicit padding: on the CPU that is 4
            # times slower for pools and 10 times for bfloat16 convolutions.
            fixed = [((k - 1) // 2, k // 2) for k in self.kernel_size]
            inputs = tf.pad(inputs, self._order((0, 0), fixed, (0, 0)))
            padding = 'VALID'
        strides = self._order(1, self.strides, 1)
        return operation(inputs, *kernel, strides, padding, self.data_format)

    def _output_size(self, input_shape):
        axis = 1 if self._channel_axis == 3 else 2
        sizes = input_shape[axis : axis + 2]
        result = []
        for size, kernel, stride in zip(
            sizes, self.kernel_size, self.strides, strict=True
        ):
            if self.padding == 'same':
                result.append(math.ceil(size / stride))
            else:
                pad = kernel - 1 if self.padding == 'fixed' else 0
                result.append((size + pad - kernel) // stride + 1)
        if min(result) < 1:
            raise errors.UserError(
                f'image size: the images are too small for this model, whose '
                f'{self.name} would slide a {self.kernel_size} window over '
                f'{tuple(sizes)} pixels'
            )
        return result


class Conv(_SpatialLayer):
    """2-D convolution, optional bias and activation."""

    def __init__(
        self,
        filters,
        kernel,
        strides=1,
        padding='same',
        bias=None,
        activation=None,
        initializer='he_normal',
        name=None,
    ):
        """`bias` is the bias's first value; None is no bias."""
        super().__init__(kernel, strides, padding, name)
        self.filters = filters
        self._bias_value = bias
        self._activation = ACTIVATIONS[activation]
        self._kernel_initializer = initializer

    def build(self, input_shape):
        """Creates the kernel and, if there is one, the bias."""
        self.kernel = self.add_weight(
            name='kernel',
            shape=(
                *self.kernel_size,
                input_shape[self._channel_axis],
                self.filters,
            ),
            initializer=make_initializer(self._kernel_initializer),
        )
        self.bias = None
        if self._bias_value is not None:
            self.bias = self.add_weight(
                name='bias',
                shape=(self.filters,),
                initializer=keras.initializers.Constant(self._bias_value),
            )

    def call(self, inputs):
        kernel = tf.convert_to_tensor(self.kernel)
        x = self._windows(tf.nn.conv2d, inputs, kernel)
        if self.bias is not None:
            bias = tf.convert_to_tensor(self.bias)
            x = tf.nn.bias_add(x, bias, self.data_format)
        return self._activation(x)

    def compute_output_shape(self, input_shape):
        size = self._output_size(input_shape)
        return self._order(input_shape[0], size, self.filters)


class DepthwiseConv(_SpatialLayer):
    """One filter (or `multiplier` filters) for each channel, no bias."""

    def __init__(
        self,
        kernel,
        strides=1,
        padding='same',
        multiplier=1,
        initializer='he_normal',
        name=None,
    ):
        super().__init__(kernel, strides, padding, name)
        self.multiplier = multiplier
        self._kernel_initializer = initializer

    def build(self, input_shape):
        channels = input_shape[self._channel_axis]
        self.kernel = self.add_weight(
            name='depthwise_kernel',
            shape=(*self.kernel_size, channels, self.multiplier),
            initializer=_DepthwiseInitializer(self._kernel_initializer),
        )

    def call(self, inputs):
        kernel = tf.convert_to_tensor(self.kernel)
        return self._windows(tf.nn.depthwise_conv2d, inputs, kernel)

    def compute_output_shape(self, input_shape):
        size = self._output_size(input_shape)
        channels = input_shape[self._channel_axis] * self.multiplier
        return self._order(input_shape[0], size, channels)


class _DepthwiseInitializer(keras.initializers.Initializer):
    """Draws (h, w, channels, m) with the fan of a (h, w, 1, m) kernel."""

    def __init__(self, initializer):
        self._inner = make_initializer(initializer)

    def __call__(self, shape, dtype=None):
        height, width, channels, multiplier = shape
        drawn = self._inner((height, width, 1, channels * multiplier), dtype)
        return tf.reshape(drawn, shape)


class Pool(_SpatialLayer):
    """Maximum or average over a window.

    The padding does not count with 'same'; with 'fixed' its zeros do.
    """

    def __init__(self, kind, size, strides, padding='valid', name=None):
        super().__init__(size, strides, padding, name)
        self.kind = kind
        self._pool = {'max': tf.nn.max_pool2d, 'avg': tf.nn.avg_pool2d}[kind]

    def call(self, inputs):
        size = self._order(1, self.kernel_size, 1)
        return self._windows(self._pool, inputs, size)

    def compute_output_shape(self, input_shape):
        channels = input_shape[self._channel_axis]
        return self._order(
            input_shape[0], self._output_size(input_shape), channels
        )


class Dense(keras.layers.Layer):
    """A matrix product, a bias, an activation.

    With `float32_output` the product is in the compute dtype and what
    follows it in float32: the form of logits.
    """

    def __init__(
        self,
        units,
        activation=None,
        bias=0.0,
        initializer='glorot_uniform',
        float32_output=False,
        name=None,
    ):
        super().__init__(name=name)
        self.units = units
        self._activation = ACTIVATIONS[activation]
        self._bias_value = bias
        self._kernel_initializer = initializer
        self._float32_output = float32_output

    def build(self, input_shape):
        """Creates the matrix (inputs, units) and the bias (units,)."""
        self.kernel = self.add_weight(
            name='kernel',
            shape=(input_shape[-1], self.units),
            initializer=make_initializer(self._kernel_initializer),
        )
        self.bias = self.add_weight(
            name='bias',
            shape=(self.units,),
            initializer=keras.initializers.Constant(self._bias_value),
            autocast=not self._float32_output,
        )

    def call(self, inputs):
        x = tf.linalg.matmul(inputs, tf.convert_to_tensor(self.kernel))
        bias = tf.convert_to_tensor(self.bias)
        if self._float32_output:
            x, bias = tf.cast(x, tf.float32), tf.cast(bias, tf.float32)
        return self._activation(tf.nn.bias_add(x, bias))

    def compute_output_spec(self, inputs, **kwargs):
        dtype = 'float32' if self._float32_output else self.compute_dtype
        return keras.KerasTensor((inputs.shape[0], self.units), dtype)


class Dropout(keras.layers.Layer):
    """Zeroes a share of the inputs in training, scales the others up.

    `whole_images` drops all of one image's values together: the drop path
    of NASNet.
    """

    def __init__(self, rate, whole_images=False, name=None):
        super().__init__(name=name)
        self.rate = rate
        self._whole_images = whole_images
        # Named after the layer: Keras's own name would be a running number.
        self.seed_generator = keras.random.SeedGenerator(name=f'{name}_seed')

    def call(self, inputs, training=False):
        """Drops at random in training, and scales what stays."""
        if not training or not self.rate:
            return inputs
        noise_shape = None
        if self._whole_images:
            noise_shape = (tf.shape(inputs)[0], 1, 1, 1)
        return keras.random.dropout(
            inputs, self.rate, noise_shape, self.seed_generator
        )

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)


class Add(keras.layers.Layer):
    """Sum of tensors of one shape, then an activation."""

    def __init__(self, activation=None, name=None):
        super().__init__(name=name)
        self._activation = ACTIVATIONS[activation]

    def call(self, inputs):
        total = inputs[0] + inputs[1]
        for one in inputs[2:]:
            total += one
        return self._activation(total)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape[0])


class Function(keras.layers.Layer):
    """A function of one tensor without weights; the caller knows its shape.

    Attributes:
        plain: makes the same of what Keras brings along, for NHWC.
    """

    def __init__(self, function, output_shape, name=None, *, plain):
        super().__init__(name=name)
        self.plain = plain
        self._function = function
        self._shape = tuple(output_shape)

    def call(self, inputs):
        return self._function(inputs)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._shape)
