"""DenseNet: the CIFAR networks of the paper, and DenseNet-121."""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

_NORM = {'momentum': 0.9, 'epsilon': 1e-5, 'activation': 'relu'}


def _layer(x, growth, bottleneck, name):
    """Adds `growth` channels; a bottleneck is a 1x1 of four times that."""
    y = layers.batch_norm(x, name=f'{name}_0_bn', **_NORM)
    if bottleneck:
        y = layers.conv(y, 4 * growth, 1, name=f'{name}_1_conv')
        y = layers.batch_norm(y, name=f'{name}_1_bn', **_NORM)
    y = layers.conv(y, growth, 3, name=f'{name}_2_conv')
    return layers.concat((x, y), name=f'{name}_concat')


def build(images, num_classes, blocks, growth, imagenet):
    """Dense blocks with transitions between them.

    Args:
        images: symbolic images.
        num_classes: number of classes.
        blocks: number of layers of each dense block.
        growth: channels that a layer adds.
        imagenet: the form of table 1 (bottlenecks, transitions that halve
            the channels, a stem that quarters the image) or that of the
            CIFAR networks (none of these, 16 channels first).
    """
    if imagenet:
        x = layers.conv(
            images, 2 * growth, 7, 2, padding='fixed', name='stem_conv'
        )
        x = layers.batch_norm(x, name='stem_bn', **_NORM)
        x = layers.max_pool(x, 3, 2, 'fixed', name='stem_pool')
    else:
        x = layers.conv(images, 16, 3, name='stem_conv')
    for block, count in enumerate(blocks, 1):
        for index in range(1, count + 1):
            x = _layer(x, growth, imagenet, f'block{block}_{index}')
        if block < len(blocks):
            name = f'transition{block}'
            channels = layers.num_channels(x) // (2 if imagenet else 1)
            x = layers.batch_norm(x, name=f'{name}_bn', **_NORM)
            x = layers.conv(x, channels, 1, name=f'{name}_conv')
            x = layers.avg_pool(x, 2, 2, name=f'{name}_pool')
    x = layers.batch_norm(x, name='post', **_NORM)
    return layers.logits(layers.global_mean(x), num_classes)


# Name, layers a block, growth, parameters, multiply-adds, top-1 (C10+).
_CIFAR = (
    ('densenet40_k12', 12, 12, 1_019_722, 264_808_448 + 4_480, 94.76),
    ('densenet100_k12', 32, 12, 6_979_642, 1_769_504_768 + 11_680, 95.90),
    ('densenet100_k24', 32, 24, 27_249_082, 6_889_324_544 + 23_200, 96.26),
)

SPECS = (
    ModelSpec(
        'densenet121',
        'imagenet',
        functools.partial(
            build, blocks=(6, 12, 24, 16), growth=32, imagenet=True
        ),
        image_size=224,
        batch_size=32,
        learning_rate=0.1,
        schedule='imagenet_resnet',
        parameters=7_978_856,
        macs=2_833_137_664 + 1_024_000,
        source='Huang et al. arXiv 1608.06993, table 1',
    ),
) + tuple(
    ModelSpec(
        name,
        'cifar10',
        functools.partial(
            build, blocks=(count,) * 3, growth=growth, imagenet=False
        ),
        image_size=32,
        batch_size=64,
        learning_rate=0.1,
        schedule='densenet',
        parameters=parameters,
        macs=macs,
        top_1=top_1,
        source='Huang et al. arXiv 1608.06993, section 4; its authors',
    )
    for name, count, growth, parameters, macs, top_1 in _CIFAR
)
