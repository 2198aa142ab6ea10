"""The layer classes beneath `layers`.

Every layer keeps to few and fused TensorFlow operations, knows its output
shape (so that building a model traces nothing), and follows Keras's image
data format and dtype policy at the time it is created. Variables are only
written with `assign`, so that `keras.StatelessScope` captures the writes.
"""

import math

import keras
import tensorflow as tf

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


def _initializer(value):
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

    def _tf_strides(self):
        return self._order(1, self.strides, 1)

    def _tf_padding(self):
        if self.padding != 'fixed':
            return self.padding.upper()
        fixed = [((k - 1) // 2, k // 2) for k in self.kernel_size]
        return self._order((0, 0), fixed, (0, 0))

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
            raise ValueError(
                f'images are too small for this model: {self.name} would '
                f'slide a {self.kernel_size} window over {tuple(sizes)}'
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
        self.kernel = self.add_weight(
            name='kernel',
            shape=(
                *self.kernel_size,
                input_shape[self._channel_axis],
                self.filters,
            ),
            initializer=_initializer(self._kernel_initializer),
        )
        self.bias = None
        if self._bias_value is not None:
            self.bias = self.add_weight(
                name='bias',
                shape=(self.filters,),
                initializer=keras.initializers.Constant(self._bias_value),
            )

    def call(self, inputs):
        x = tf.nn.conv2d(
            inputs,
            tf.convert_to_tensor(self.kernel),
            self._tf_strides(),
            self._tf_padding(),
            self.data_format,
        )
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
        # The kernel wants equal strides in both directions.
        return tf.nn.depthwise_conv2d(
            inputs,
            tf.convert_to_tensor(self.kernel),
            self._tf_strides(),
            self._tf_padding(),
            self.data_format,
        )

    def compute_output_shape(self, input_shape):
        size = self._output_size(input_shape)
        channels = input_shape[self._channel_axis] * self.multiplier
        return self._order(input_shape[0], size, channels)


class _DepthwiseInitializer(keras.initializers.Initializer):
    """Draws (h, w, channels, m) with the fan of a (h, w, 1, m) kernel."""

    def __init__(self, initializer):
        self._inner = _initializer(initializer)

    def __call__(self, shape, dtype=None):
        height, width, channels, multiplier = shape
        drawn = self._inner((height, width, 1, channels * multiplier), dtype)
        return tf.reshape(drawn, shape)


class Pool(_SpatialLayer):
    """Maximum or average over a window; padding never counts."""

    def __init__(self, kind, size, strides, padding='valid', name=None):
        super().__init__(size, strides, padding, name)
        self._pool = {'max': tf.nn.max_pool2d, 'avg': tf.nn.avg_pool2d}[kind]

    def call(self, inputs):
        return self._pool(
            inputs,
            self._order(1, self.kernel_size, 1),
            self._tf_strides(),
            self._tf_padding(),
            self.data_format,
        )

    def compute_output_shape(self, input_shape):
        channels = input_shape[self._channel_axis]
        return self._order(
            input_shape[0], self._output_size(input_shape), channels
        )


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
        self._activation = ACTIVATIONS[activation]
        self._axis = channel_axis() if axis is None else axis % 4

    def build(self, input_shape):
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

    def call(self, inputs, training=False):
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
        self.kernel = self.add_weight(
            name='kernel',
            shape=(input_shape[-1], self.units),
            initializer=_initializer(self._kernel_initializer),
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
    """A function of one tensor without weights; the caller knows its shape."""

    def __init__(self, function, output_shape, name=None):
        super().__init__(name=name)
        self._function = function
        self._shape = tuple(output_shape)

    def call(self, inputs):
        return self._function(inputs)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._shape)
