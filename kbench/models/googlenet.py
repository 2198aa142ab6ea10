"""GoogLeNet, and the form of it with batch norm and 3x3 windows."""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

# One inception module a row: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool
# projection. A maximum pool begins each new stage.
_STAGES = (
    (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
    ),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    (
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ),
)


def build(images, num_classes, conv, large, dropout):
    """The network of table 1 of the paper without auxiliary classifiers.

    Args:
        images: symbolic images.
        num_classes: number of classes.
        conv: adds a convolution with its activation.
        large: window of the third branch: 5 in the paper.
        dropout: share of the last features that training drops.
    """
    x = conv(images, 64, 7, 2, name='conv1')
    x = layers.max_pool(x, 3, 2, 'same', name='pool1')
    x = conv(x, 64, 1, name='conv2')
    x = conv(x, 192, 3, name='conv3')
    for stage, modules in enumerate(_STAGES, 3):
        x = layers.max_pool(x, 3, 2, 'same', name=f'pool{stage}')
        for index, (a, b3, c3, b5, c5, d) in enumerate(modules, 1):
            rows = (
                ((a, 1),),
                ((b3, 1), (c3, 3)),
                ((b5, 1), (c5, large)),
                (('max', 3, 1, 'same'), (d, 1)),
            )
            x = layers.branches(
                x, rows, name=f'mixed{stage}_{index}', conv=conv
            )
    x = layers.dropout(layers.global_mean(x), dropout, name='dropout')
    return layers.logits(x, num_classes)


def _build_googlenet(images, num_classes):
    # Glorot's weights and biases of 0.2: Caffe's bvlc_googlenet.
    conv = functools.partial(
        layers.conv,
        bias=0.2,
        activation='relu',
        initializer='glorot_uniform',
    )
    return build(images, num_classes, conv, large=5, dropout=0.4)


def _build_inception_v1(images, num_classes):
    norm = {'momentum': 0.999, 'epsilon': 1e-3, 'scale': False}
    conv = functools.partial(layers.conv_bn, norm=norm)
    return build(images, num_classes, conv, large=3, dropout=0.2)


SPECS = (
    ModelSpec(
        'googlenet',
        'imagenet',
        _build_googlenet,
        image_size=224,
        batch_size=32,
        learning_rate=0.005,
        parameters=6_998_552,
        macs=1_581_647_872 + 1_024_000,
        top_1=68.7,
        top_5=88.9,
        source='Szegedy et al. arXiv 1409.4842, table 1; BVLC Caffe readme',
    ),
    ModelSpec(
        'inception_v1',
        'imagenet',
        _build_inception_v1,
        image_size=224,
        batch_size=32,
        learning_rate=0.005,
        parameters=6_617_624,
        macs=1_498_376_192,
        top_1=69.8,
        top_5=89.6,
        source=(
            'Szegedy et al. arXiv 1409.4842, table 1, with the 3x3 windows '
            'and batch norm of slim; slim'
        ),
    ),
)
