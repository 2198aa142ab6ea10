"""A network with all kinds of variables that starts in a second."""

from kbench.models import layers

_NORM = {'momentum': 0.9, 'epsilon': 1e-5}


def build(images, num_classes):
    """A convolution, batch norm, a hidden layer with dropout, logits."""
    x = layers.conv_bn(images, 8, 3, 2, norm=_NORM, name='stem')
    x = layers.dense(layers.flatten(x), 32, name='dense')
    x = layers.dropout(x, 0.1, name='dropout')
    return layers.logits(x, num_classes)


build.image_size = 8
