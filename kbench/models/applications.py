"""keras.applications with kbench's batch norm inside."""

import inspect

import keras

from kbench.models import batch_norm, layer_types


def _replacement(layer):
    """What stands in for a layer when a model is copied."""
    if isinstance(layer, keras.layers.BatchNormalization):
        axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0]
        if len(layer.input.shape) == 4 and axis % 4 in (1, 3):
            return batch_norm.BatchNorm(
                momentum=layer.momentum,
                epsilon=layer.epsilon,
                scale=layer.scale,
                center=layer.center,
                axis=axis,
                name=layer.name,
            )
    if type(layer) is keras.layers.Dropout:
        # Keras's own random state is named by a running number.
        return layer_types.Dropout(
            layer.rate,
            whole_images=layer.noise_shape is not None,
            name=layer.name,
        )
    return layer.__class__.from_config(layer.get_config())


def fuse_batch_norms(model: keras.Model, images=None) -> keras.Model:
    """Copies a functional model with every 4-D batch norm a fused one.

    Args:
        model: the model.
        images: symbolic input of the copy; None makes one.

    Returns:
        A model with new weights, in the order of the given one's.
    """
    return keras.models.clone_model(
        model, input_tensors=images, clone_function=_replacement
    )


def build(images, num_classes: int, name: str):
    """A model of keras.applications, from images in [-1, 1] to logits.

    Args:
        images: symbolic images.
        num_classes: number of classes.
        name: such as `EfficientNetV2B0`.
    """
    constructor = getattr(keras.applications, name)
    options = {
        'weights': None,
        'classes': num_classes,
        'classifier_activation': None,
        'input_shape': tuple(images.shape[1:]),
    }
    if 'include_preprocessing' in inspect.signature(constructor).parameters:
        options['include_preprocessing'] = False
    model = constructor(**options)
    return fuse_batch_norms(_from_unit_range(model), images).outputs[0]


def _from_unit_range(model):
    """A model that scales pixels of 0 to 255 takes [-1, 1] instead."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Rescaling):
            # scale x (127.5 x image + 127.5) + offset
            layer.offset = layer.offset + 127.5 * layer.scale
            layer.scale = 127.5 * layer.scale
            break
    return model
