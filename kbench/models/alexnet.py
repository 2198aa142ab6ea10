"""AlexNet for ImageNet, and the small network of the CIFAR-10 tutorial."""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

# Width, window, stride, padding, first bias, pool behind it.
_CONVOLUTIONS = (
    (64, 11, 4, 'valid', 0.0, True),
    (192, 5, 1, 'same', 1.0, True),
    (384, 3, 1, 'same', 0.0, False),
    (384, 3, 1, 'same', 1.0, False),
    (256, 3, 1, 'same', 1.0, True),
)


def build(images, num_classes):
    """The single-column AlexNet without response normalisation.

    Weights N(0, 0.01) and biases 0 or 1 by layer are those of section 5
    of the 2012 paper.
    """
    x = images
    for index, row in enumerate(_CONVOLUTIONS, 1):
        filters, kernel, strides, padding, bias, pool = row
        x = layers.conv(
            x,
            filters,
            kernel,
            strides,
            padding=padding,
            bias=bias,
            activation='relu',
            initializer=0.01,
            name=f'conv{index}',
        )
        if pool:
            x = layers.max_pool(x, 3, 2, name=f'pool{index}')
    x = layers.flatten(x)
    for index in (6, 7):
        x = layers.dense(
            x, 4096, bias=1.0, initializer=0.01, name=f'dense{index}'
        )
        x = layers.dropout(x, 0.5, name=f'dropout{index}')
    return layers.logits(x, num_classes, initializer=0.01)


def build_cifar(images, num_classes):
    """Two 5x5 convolutions with response normalisation, two hidden layers.

    Normalisation constants, standard deviations and biases are those of
    the tutorial's `cifar10.py`.
    """
    conv = functools.partial(layers.conv, activation='relu', initializer=0.05)
    x = conv(images, 64, 5, bias=0.0, name='conv1')
    x = layers.max_pool(x, 3, 2, 'same', name='pool1')
    x = layers.response_norm(x, name='norm1')
    x = conv(x, 64, 5, bias=0.1, name='conv2')
    x = layers.response_norm(x, name='norm2')
    x = layers.max_pool(x, 3, 2, 'same', name='pool2')
    x = layers.flatten(x)
    x = layers.dense(x, 384, bias=0.1, initializer=0.04, name='dense3')
    x = layers.dense(x, 192, bias=0.1, initializer=0.04, name='dense4')
    return layers.logits(x, num_classes, initializer=1 / 192)


SPECS = (
    ModelSpec(
        'alexnet',
        'imagenet',
        build,
        image_size=227,
        batch_size=512,
        learning_rate=0.005,
        parameters=61_838_248,
        macs=780_166_848 + 58_621_952,
        top_1=57.1,
        top_5=80.2,
        source='Krizhevsky arXiv 1404.5997 (one column); BVLC Caffe readme',
    ),
    ModelSpec(
        'alexnet',
        'cifar10',
        build_cifar,
        image_size=32,
        batch_size=128,
        learning_rate=0.1,
        schedule='cifar_alexnet',
        parameters=1_756_426,
        macs=31_129_600 + 1_648_512,
        source='Krizhevsky 2009; the TensorFlow CIFAR-10 tutorial',
    ),
)
