"""Builds a row of the model table, and measures what was built."""

import contextlib
from collections.abc import Iterator

import keras

from kbench.models.spec import ModelSpec

_DATA_FORMATS = {'NHWC': 'channels_last', 'NCHW': 'channels_first'}


@contextlib.contextmanager
def keras_config(
    policy: str = 'float32', data_format: str = 'NHWC'
) -> Iterator[None]:
    """Sets what Keras layers take from the process, for a while.

    Args:
        policy: name of Keras's dtype policy.
        data_format: NHWC or NCHW.
    """
    before = keras.config.dtype_policy(), keras.config.image_data_format()
    keras.config.set_dtype_policy(policy)
    keras.config.set_image_data_format(_DATA_FORMATS[data_format])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before[0])
        keras.config.set_image_data_format(before[1])


class Classifier(keras.Model):
    """A functional model whose outputs are a list, also where it has one.

    Keras itself unpacks a list of one.
    """

    def call(self, inputs, training=None, mask=None):
        outputs = super().call(inputs, training=training, mask=mask)
        return outputs if isinstance(outputs, list) else [outputs]


def _float32(x, name):
    """Models from elsewhere end in the compute dtype."""
    if x.dtype == 'float32':
        return x
    return keras.layers.Activation('linear', dtype='float32', name=name)(x)


def create_model(
    spec: ModelSpec, num_classes: int, image_size: int | None = None
) -> Classifier:
    """Builds a functional model in the present data format and policy.

    Args:
        spec: a row of the table.
        num_classes: number of classes.
        image_size: height and width in pixels; None = the row's own.

    Returns:
        A model from images, (batch, size, size, 3) or in NCHW
        (batch, 3, size, size), in the compute dtype and scaled to
        [-1, 1], to a list: logits (batch, num_classes) in float32, then the
        auxiliary logits, which count in training only.

    Raises:
        ValueError: the images are too small for the model.
    """
    size = image_size or spec.image_size
    shape = (size, size, 3)
    if keras.config.image_data_format() == 'channels_first':
        shape = (3, size, size)
    images = keras.Input(
        shape, dtype=keras.config.dtype_policy().compute_dtype, name='images'
    )
    outputs = spec.builder(images, num_classes)
    if isinstance(outputs, keras.Model):
        outputs = outputs(images)
    logits, auxiliary = outputs if isinstance(outputs, tuple) else (outputs, ())
    all_logits = [
        _float32(x, f'output{index}')
        for index, x in enumerate((logits, *auxiliary))
    ]
    name = spec.name.replace(':', '_').replace('/', '_')
    return Classifier(images, all_logits, name=name)


def seed_generators(model: keras.Model) -> list:
    """Every `keras.random.SeedGenerator` of a model's layers, in order."""
    found = {}
    # Keras tracks them itself, nested models' too, under a private name.
    for layer in model._flatten_layers(include_self=True, recursive=True):
        for generator in getattr(layer, '_seed_generators', ()):
            found[id(generator)] = generator
    return list(found.values())
