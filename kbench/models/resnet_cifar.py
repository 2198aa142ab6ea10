"""Residual networks for 32x32 images, versions 1 and 2."""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

_NORM = {'momentum': 0.9, 'epsilon': 1e-5}
# In front of a convolution: what follows does without a scale.
_PRE_NORM = {**_NORM, 'scale': False, 'activation': 'relu'}


def _block(x, filters, strides, version, name):
    """Two 3x3 convolutions; the shortcut adds zero channels, no weights."""
    shortcut = x
    if layers.num_channels(x) != filters:
        shortcut = layers.subsample(
            x, strides, channels=filters, name=f'{name}_shortcut'
        )
    y = x
    if version == 2:
        y = layers.batch_norm(x, name=f'{name}_pre', **_PRE_NORM)
    y = layers.conv_bn(y, filters, 3, strides, norm=_NORM, name=f'{name}_1')
    if version == 2:
        y = layers.conv(y, filters, 3, name=f'{name}_2_conv')
        return layers.add((shortcut, y), name=f'{name}_add')
    y = layers.conv_bn(
        y, filters, 3, activation=None, norm=_NORM, name=f'{name}_2'
    )
    return layers.add((shortcut, y), activation='relu', name=f'{name}_add')


def build(images, num_classes, blocks, version):
    """A 3x3 stem and three stages of 16, 32, 64 channels, `blocks` each.

    Weights are He's normal ones (fan in), as the paper has them.
    """
    x = layers.conv_bn(images, 16, 3, norm=_NORM, name='stem')
    for stage, filters in enumerate((16, 32, 64), 1):
        for index in range(1, blocks + 1):
            strides = 2 if stage > 1 and index == 1 else 1
            name = f'stage{stage}_block{index}'
            x = _block(x, filters, strides, version, name)
    if version == 2:
        x = layers.batch_norm(x, name='post', **_PRE_NORM)
    return layers.logits(layers.global_mean(x), num_classes)


# Depth, blocks a stage, parameters of version 1 and 2, multiply-adds of the
# convolutions, top-1 of version 1 and 2 where published.
_ROWS = (
    (20, 3, 269_722, 269_402, 40_550_400, 91.25, None),
    (32, 5, 464_154, 463_610, 68_861_952, 92.49, None),
    (44, 7, 658_586, 657_818, 97_173_504, 92.83, None),
    (56, 9, 853_018, 852_026, 125_485_056, 93.03, None),
    (110, 18, 1_727_962, 1_725_962, 252_887_040, 93.57, 93.63),
)


def _spec(depth, blocks, parameters, macs, top_1, version):
    return ModelSpec(
        f'resnet{depth}' + ('_v2' if version == 2 else ''),
        'cifar10',
        functools.partial(build, blocks=blocks, version=version),
        image_size=32,
        batch_size=128,
        learning_rate=0.1,
        schedule='cifar_resnet',
        parameters=parameters,
        macs=macs + 640,
        top_1=top_1,
        source=(
            'He et al. arXiv 1512.03385, section 4.2 and table 6'
            if version == 1
            else 'He et al. arXiv 1603.05027, table 2'
        ),
    )


SPECS = tuple(
    _spec(depth, blocks, parameters[version - 1], macs, top_1, version)
    for depth, blocks, *parameters, macs, top_1_v1, top_1_v2 in _ROWS
    for version, top_1 in ((1, top_1_v1), (2, top_1_v2))
)
