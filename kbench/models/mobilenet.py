"""MobileNet v1 and v2."""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

_NORM = {'momentum': 0.999, 'epsilon': 1e-3}

# Output channels and stride of each depthwise-separable pair.
_V1 = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)

# Expansion, channels, blocks, stride of the first block: table 2.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _depthwise(x, strides, activation, name):
    x = layers.depthwise_conv(x, 3, strides, name=f'{name}_conv')
    return layers.batch_norm(
        x, activation=activation, name=f'{name}_bn', **_NORM
    )


def build_v1(images, num_classes, activation):
    """A 3x3 convolution and thirteen depthwise-separable pairs."""
    conv = functools.partial(layers.conv_bn, norm=_NORM, activation=activation)
    x = conv(images, 32, 3, 2, name='conv1')
    for index, (filters, strides) in enumerate(_V1, 2):
        x = _depthwise(x, strides, activation, f'conv{index}_depthwise')
        x = conv(x, filters, 1, name=f'conv{index}')
    x = layers.dropout(layers.global_mean(x), 0.001, name='dropout')
    return layers.logits(x, num_classes)


def _channels(channels, width):
    """Scales a channel count: a multiple of 8, at most 10 % less."""
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def build_v2(images, num_classes, width):
    """Inverted residual blocks with linear ends; `width` scales channels."""
    conv = functools.partial(layers.conv_bn, norm=_NORM)
    x = conv(
        images, _channels(32, width), 3, 2, activation='relu6', name='stem'
    )
    for stage, (expansion, channels, blocks, first) in enumerate(_V2, 1):
        filters = _channels(channels, width)
        for index in range(blocks):
            name = f'stage{stage}_block{index + 1}'
            strides = first if index == 0 else 1
            depth = layers.num_channels(x)
            y = x
            if expansion > 1:
                y = conv(
                    y,
                    expansion * depth,
                    1,
                    activation='relu6',
                    name=f'{name}_expand',
                )
            y = _depthwise(y, strides, 'relu6', f'{name}_depthwise')
            y = conv(y, filters, 1, activation=None, name=f'{name}_project')
            if strides == 1 and depth == filters:
                y = layers.add((x, y), name=f'{name}_add')
            x = y
    last = _channels(1280, max(1.0, width))
    x = conv(x, last, 1, activation='relu6', name='last')
    x = layers.dropout(layers.global_mean(x), 0.2, name='dropout')
    return layers.logits(x, num_classes)


_V1_PAPER = 'Howard et al. arXiv 1704.04861, table 1'
_V2_PAPER = 'Sandler et al. arXiv 1801.04381, table 2'

# Name, builder, parameters, multiply-adds, top-1, top-5, source, aliases.
_ROWS = (
    (
        'mobilenet',
        functools.partial(build_v2, width=1.0),
        3_504_872,
        299_494_272 + 1_280_000,
        71.8,
        91.0,
        f'{_V2_PAPER}; slim',
        ('mobilenet_v2_d1',),
    ),
    (
        'mobilenet_v2_d14',
        functools.partial(build_v2, width=1.4),
        6_108_776,
        580_403_824 + 1_792_000,
        75.0,
        92.5,
        f'{_V2_PAPER} and section 5; slim',
        (),
    ),
    (
        'mobilenet_v1_orig',
        functools.partial(build_v1, activation='relu6'),
        4_231_976,
        568_740_352,
        70.9,
        89.9,
        f'{_V1_PAPER}, ReLU6; slim',
        (),
    ),
    (
        'mobilenet_v1_relu',
        functools.partial(build_v1, activation='relu'),
        4_231_976,
        568_740_352,
        72.9,
        90.6,
        f'{_V1_PAPER}, ReLU; tf-imagenet README',
        (),
    ),
)

SPECS = tuple(
    ModelSpec(
        name,
        'imagenet',
        builder,
        image_size=224,
        batch_size=32,
        learning_rate=0.005,
        parameters=parameters,
        macs=macs,
        top_1=top_1,
        top_5=top_5,
        source=source,
        aliases=aliases,
    )
    for name, builder, parameters, macs, top_1, top_5, source, aliases in _ROWS
)
