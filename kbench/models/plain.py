"""A model in Keras's own layers, which loads where there is no kbench."""

import keras

from kbench import errors
from kbench.models import batch_norm, build, layer_types


def _activated(layer, x):
    """Adds the activation of one of our layers."""
    for name, function in layer_types.ACTIVATIONS.items():
        if function is layer._activation and name is not None:
            return keras.layers.Activation(name)(x)
    return x


def _padded(layer, x):
    """Adds the zeros of `fixed` padding; returns what is left to do."""
    if layer.padding != 'fixed':
        return x, layer.padding
    sides = [((k - 1) // 2, k // 2) for k in layer.kernel_size]
    return keras.layers.ZeroPadding2D(sides)(x), 'valid'


class _Conversion:
    """Calls a layer of Keras in place of each layer of a model."""

    def __init__(self):
        self.pairs = []

    def _with_weights(self, layer, plain, x):
        """Calls a layer that gets the weights of another."""
        found = plain(x)
        self.pairs += zip(layer.weights, plain.weights, strict=True)
        return found

    def _conv(self, layer, x):
        x, padding = _padded(layer, x)
        plain = keras.layers.Conv2D(
            layer.filters,
            layer.kernel_size,
            layer.strides,
            padding,
            use_bias=layer.bias is not None,
            name=layer.name,
        )
        return _activated(layer, self._with_weights(layer, plain, x))

    def _depthwise(self, layer, x):
        x, padding = _padded(layer, x)
        plain = keras.layers.DepthwiseConv2D(
            layer.kernel_size,
            layer.strides,
            padding,
            depth_multiplier=layer.multiplier,
            use_bias=False,
            name=layer.name,
        )
        return self._with_weights(layer, plain, x)

    def _pool(self, layer, x):
        x, padding = _padded(layer, x)
        kind = {
            'max': keras.layers.MaxPooling2D,
            'avg': keras.layers.AveragePooling2D,
        }[layer.kind]
        return kind(layer.kernel_size, layer.strides, padding)(x)

    def _dense(self, layer, x):
        plain = keras.layers.Dense(layer.units, name=layer.name)
        return _activated(layer, self._with_weights(layer, plain, x))

    def _batch_norm(self, layer, x):
        plain = keras.layers.BatchNormalization(
            momentum=layer.momentum,
            epsilon=layer.epsilon,
            scale=layer.gamma is not None,
            center=layer.beta is not None,
            name=layer.name,
        )
        return _activated(layer, self._with_weights(layer, plain, x))

    def _dropout(self, layer, x):
        # At inference it does nothing, and this is for inference.
        del layer
        return x

    def _add(self, layer, tensors):
        return _activated(layer, keras.layers.Add()(tensors))

    def _function(self, layer, x):
        return layer.plain()(x)

    _KINDS = {
        layer_types.Conv: _conv,
        layer_types.DepthwiseConv: _depthwise,
        layer_types.Pool: _pool,
        layer_types.Dense: _dense,
        layer_types.Dropout: _dropout,
        layer_types.Add: _add,
        layer_types.Function: _function,
        batch_norm.BatchNorm: _batch_norm,
    }

    def call(self, layer, *args, **kwargs):
        """The outputs of a layer of the model."""
        convert = self._KINDS.get(type(layer))
        if convert is not None:
            return convert(self, layer, args[0])
        if not isinstance(layer, keras.layers.Layer):
            return layer(*args, **kwargs)
        module = type(layer).__module__
        if module.partition('.')[0] != 'keras':
            raise errors.UserError(
                f'layer {layer.name!r} is a {module}.{type(layer).__name__}: '
                'only layers of Keras and of kbench can be written to a '
                '.keras file that loads without their code'
            )
        config = layer.get_config()
        # A policy of the training would follow into the file.
        config['dtype'] = 'float32'
        plain = type(layer).from_config(config)
        found = plain(*args, **kwargs)
        self.pairs += zip(layer.weights, plain.weights, strict=True)
        return found


@build.keras_config()
def create_plain(model: keras.Model) -> keras.Model:
    """Makes a classifier of pixels in Keras's own layers, in float32.

    Args:
        model: from `create_model`, in NHWC; of its outputs the first counts.

    Returns:
        A model from (batch, size, size, 3), float32 in 0..255, to
        probabilities (batch, num_classes), with the weights of the given
        one.

    Raises:
        UserError: naming a layer that is neither Keras's nor ours.
    """
    conversion = _Conversion()
    pixels = keras.Input(model.inputs[0].shape[1:], name='pixels')
    images = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(pixels)
    body = keras.models.clone_model(
        keras.Model(model.inputs[0], model.outputs[0], name='body'),
        clone_function=lambda layer: layer,
        call_function=conversion.call,
    )
    probabilities = keras.layers.Softmax(name='probabilities')(body(images))
    found = keras.Model(pixels, probabilities, name=model.name)
    for ours, plain in conversion.pairs:
        plain.assign(ours)
    return found
