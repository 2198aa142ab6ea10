"""Inception v2, v3 and v4, each with its auxiliary classifier.

The modules are written as `layers.branches` takes them: a convolution is
(filters, window, stride, padding), windows are (height, width).
"""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

# No scale: a ReLU and a convolution follow, or a mean and the classifier.
_NORM = {'momentum': 0.999, 'epsilon': 1e-3, 'scale': False}
_AVG = ('avg', 3, 1, 'same')
_MAX = ('max', 3, 1, 'same')
_MAX_HALF = ('max', 3, 2, 'valid')
_HALF = (2, 'valid')


def _chain(x, modules, conv):
    """Modules one after the other; returns the end and every module's."""
    ends = {}
    for name, rows in modules:
        x = layers.branches(x, rows, name=name, conv=conv)
        ends[name] = x
    return x, ends


def _classify(x, num_classes, auxiliary):
    x = layers.dropout(layers.global_mean(x), 0.2, name='dropout')
    main = layers.logits(x, num_classes)
    return main, [layers.auxiliary_logits(auxiliary, num_classes, norm=_NORM)]


def _v2_module(a, b, c, d, pool=_AVG):
    return (
        ((a, 1),),
        ((b[0], 1), (b[1], 3)),
        ((c[0], 1), (c[1], 3), (c[1], 3)),
        (pool, (d, 1)),
    )


def _v2_reduction(a, b):
    return (
        ((a[0], 1), (a[1], 3, 2)),
        ((b[0], 1), (b[1], 3), (b[1], 3, 2)),
        (('max', 3, 2, 'same'),),
    )


_V2 = (
    ('mixed3_1', _v2_module(64, (64, 64), (64, 96), 32)),
    ('mixed3_2', _v2_module(64, (64, 96), (64, 96), 64)),
    ('mixed4_1', _v2_reduction((128, 160), (64, 96))),
    ('mixed4_2', _v2_module(224, (64, 96), (96, 128), 128)),
    ('mixed4_3', _v2_module(192, (96, 128), (96, 128), 128)),
    ('mixed4_4', _v2_module(160, (128, 160), (128, 160), 96)),
    ('mixed4_5', _v2_module(96, (128, 192), (160, 192), 96)),
    ('mixed5_1', _v2_reduction((128, 192), (192, 256))),
    ('mixed5_2', _v2_module(352, (192, 320), (160, 224), 128)),
    ('mixed5_3', _v2_module(352, (192, 320), (192, 224), 128, _MAX)),
)


def build_v2(images, num_classes):
    """GoogLeNet with batch norm, its 5x5 windows as two 3x3."""
    conv = functools.partial(layers.conv_bn, norm=_NORM)
    # The 7x7 is separable: eight filters a colour, then 1x1 without norm.
    x = layers.depthwise_conv(
        images, 7, 2, multiplier=8, name='conv1_depthwise'
    )
    x = layers.conv(x, 64, 1, bias=0.0, activation='relu', name='conv1')
    x = layers.max_pool(x, 3, 2, 'same', name='pool1')
    x = conv(x, 64, 1, name='conv2')
    x = conv(x, 192, 3, name='conv3')
    x = layers.max_pool(x, 3, 2, 'same', name='pool2')
    x, ends = _chain(x, _V2, conv)
    return _classify(x, num_classes, ends['mixed4_5'])


def _v3_a(pool):
    return (
        ((64, 1),),
        ((48, 1), (64, 5)),
        ((64, 1), (96, 3), (96, 3)),
        (_AVG, (pool, 1)),
    )


_V3_B = (
    ((384, 3, *_HALF),),
    ((64, 1), (96, 3), (96, 3, *_HALF)),
    (_MAX_HALF,),
)


def _v3_c(n):
    row, column = (1, 7), (7, 1)
    return (
        ((192, 1),),
        ((n, 1), (n, row), (192, column)),
        ((n, 1), (n, column), (n, row), (n, column), (192, row)),
        (_AVG, (192, 1)),
    )


_V3_D = (
    ((192, 1), (320, 3, *_HALF)),
    ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, *_HALF)),
    (_MAX_HALF,),
)
_V3_SPLIT = [((384, (1, 3)),), ((384, (3, 1)),)]
_V3_E = (
    ((320, 1),),
    ((384, 1), _V3_SPLIT),
    ((448, 1), (384, 3), _V3_SPLIT),
    (_AVG, (192, 1)),
)
_V3 = (
    ('mixed0', _v3_a(32)),
    ('mixed1', _v3_a(64)),
    ('mixed2', _v3_a(64)),
    ('mixed3', _V3_B),
    ('mixed4', _v3_c(128)),
    ('mixed5', _v3_c(160)),
    ('mixed6', _v3_c(160)),
    ('mixed7', _v3_c(192)),
    ('mixed8', _V3_D),
    ('mixed9', _V3_E),
    ('mixed10', _V3_E),
)


def build_v3(images, num_classes):
    """Inception v3; the auxiliary classifier stands behind mixed7."""
    conv = functools.partial(layers.conv_bn, norm=_NORM)
    x = conv(images, 32, 3, *_HALF, name='conv1')
    x = conv(x, 32, 3, 1, 'valid', name='conv2')
    x = conv(x, 64, 3, name='conv3')
    x = layers.max_pool(x, 3, 2, name='pool1')
    x = conv(x, 80, 1, name='conv4')
    x = conv(x, 192, 3, 1, 'valid', name='conv5')
    x = layers.max_pool(x, 3, 2, name='pool2')
    x, ends = _chain(x, _V3, conv)
    return _classify(x, num_classes, ends['mixed7'])


_V4_A = (
    (_AVG, (96, 1)),
    ((96, 1),),
    ((64, 1), (96, 3)),
    ((64, 1), (96, 3), (96, 3)),
)
_V4_REDUCE_A = (
    (_MAX_HALF,),
    ((384, 3, *_HALF),),
    ((192, 1), (224, 3), (256, 3, *_HALF)),
)
_V4_B = (
    (_AVG, (128, 1)),
    ((384, 1),),
    ((192, 1), (224, (1, 7)), (256, (7, 1))),
    ((192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))),
)
_V4_REDUCE_B = (
    (_MAX_HALF,),
    ((192, 1), (192, 3, *_HALF)),
    ((256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, *_HALF)),
)
_V4_SPLIT = [((256, (1, 3)),), ((256, (3, 1)),)]
_V4_C = (
    (_AVG, (256, 1)),
    ((256, 1),),
    ((384, 1), _V4_SPLIT),
    ((384, 1), (448, (1, 3)), (512, (3, 1)), _V4_SPLIT),
)
_V4 = (
    ('stem1', ((_MAX_HALF,), ((96, 3, *_HALF),))),
    (
        'stem2',
        (
            ((64, 1), (96, 3, 1, 'valid')),
            ((64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3, 1, 'valid')),
        ),
    ),
    ('stem3', (((192, 3, *_HALF),), (_MAX_HALF,))),
    *((f'mixed_a{i}', _V4_A) for i in range(1, 5)),
    ('reduce_a', _V4_REDUCE_A),
    *((f'mixed_b{i}', _V4_B) for i in range(1, 8)),
    ('reduce_b', _V4_REDUCE_B),
    *((f'mixed_c{i}', _V4_C) for i in range(1, 4)),
)


def build_v4(images, num_classes):
    """Inception v4; the auxiliary classifier stands behind mixed_b7."""
    conv = functools.partial(layers.conv_bn, norm=_NORM)
    x = conv(images, 32, 3, *_HALF, name='conv1')
    x = conv(x, 32, 3, 1, 'valid', name='conv2')
    x = conv(x, 64, 3, name='conv3')
    x, ends = _chain(x, _V4, conv)
    return _classify(x, num_classes, ends['mixed_b7'])


SPECS = (
    ModelSpec(
        'inception_v2',
        'imagenet',
        build_v2,
        image_size=224,
        batch_size=32,
        learning_rate=0.005,
        parameters=11_178_336,
        macs=1_934_857_216,
        top_1=73.9,
        top_5=91.8,
        source='Ioffe & Szegedy arXiv 1502.03167, figure 5; slim',
    ),
    ModelSpec(
        'inception3',
        'imagenet',
        build_v3,
        image_size=299,
        batch_size=32,
        learning_rate=0.005,
        parameters=23_817_352,
        macs=5_711_168_096 + 2_048_000,
        top_1=78.0,
        top_5=93.9,
        source='Szegedy et al. arXiv 1512.00567, table 1; slim',
        aliases=('inception_v3',),
    ),
    ModelSpec(
        'inception4',
        'imagenet',
        build_v4,
        image_size=299,
        batch_size=32,
        learning_rate=0.005,
        parameters=42_648_232,
        macs=12_252_438_624 + 1_536_000,
        top_1=80.2,
        top_5=95.2,
        source='Szegedy et al. arXiv 1602.07261, figure 9; slim',
        aliases=('inception_v4',),
    ),
)
