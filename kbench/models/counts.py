"""Parameters and multiply-adds, counted on a built model."""

import dataclasses
import math

import keras


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Numbers of scalars.

    Attributes:
        trainable: what training changes by its gradient.
        total: with the moving statistics of batch norms.
    """

    trainable: int
    total: int


def _measured(model, auxiliary):
    """The layers that count, nested models opened."""
    if len(model.outputs) > 1 and not auxiliary:
        model = keras.Model(model.inputs, model.outputs[0])
    found = []
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found += _measured(layer, True)
        else:
            found.append(layer)
    return found


def count_parameters(model: keras.Model, auxiliary: bool = False) -> Parameters:
    """Counts a model's parameters.

    Args:
        model: a model of `create_model`.
        auxiliary: whether auxiliary classifiers, which only training
            uses, are counted too.
    """
    weights = {}
    for layer in _measured(model, auxiliary):
        for weight in layer.weights:
            weights[id(weight)] = weight
    sizes = [(w.trainable, math.prod(w.shape)) for w in weights.values()]
    return Parameters(
        sum(size for trainable, size in sizes if trainable),
        sum(size for _, size in sizes),
    )


def count_macs(model: keras.Model, auxiliary: bool = False) -> int:
    """Multiply-adds of all convolutions and dense layers for one image.

    Each element of a kernel is used once for each pixel of the layer's
    output; biases, batch norms and pools are left out, as is usual.

    Args:
        model: a model of `create_model`.
        auxiliary: whether auxiliary classifiers are counted too.
    """
    total = 0
    for layer in _measured(model, auxiliary):
        kernels = [w for w in layer.weights if w.name.endswith('kernel')]
        if not kernels:
            continue
        shape = layer.output.shape[1:]
        first = getattr(layer, 'data_format', '') in ('NCHW', 'channels_first')
        pixels = math.prod(shape[1:] if first else shape[:-1])
        total += pixels * sum(math.prod(kernel.shape) for kernel in kernels)
    return total
