"""Residual networks for ImageNet, versions 1, 1.5 and 2.

Four sources differ in where a stage halves the image and in which
convolutions carry a bias; `_Variant` names the differences, one table of
rows lists the networks.
"""

import dataclasses
import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec


@dataclasses.dataclass(frozen=True)
class _Variant:
    """What tells one residual network from another of the same depth.

    Attributes:
        version: 1: normalise behind each convolution; 2: in front.
        stride_at: which convolution halves the image: `first` (1x1) or
            `second` (3x3) of a stage's first block, or `end`: the 3x3 of
            a stage's last block, the last stage keeping its size.
        stem_norm: whether batch norm and ReLU follow the first convolution.
        bias: bias on the convolutions that no batch norm follows.
        pre_scale: whether the batch norms in front have a scale; what
            follows, a ReLU and a convolution, can do without.
        momentum: of the moving statistics.
    """

    version: int = 1
    stride_at: str = 'first'
    stem_norm: bool = True
    bias: float | None = None
    pre_scale: bool = True
    momentum: float = 0.9

    @property
    def norm(self):
        """Options of a batch norm behind a convolution."""
        return {'momentum': self.momentum, 'epsilon': 1e-5}

    @property
    def pre_norm(self):
        """Options of a batch norm in front of a convolution."""
        return {**self.norm, 'scale': self.pre_scale, 'activation': 'relu'}


def _shortcut(x, preactivated, filters, strides, variant, name):
    if layers.num_channels(x) == filters:
        if strides == 1:
            return x
        return layers.subsample(x, strides, name=f'{name}_shortcut')
    if variant.version == 1:
        return layers.conv_bn(
            x,
            filters,
            1,
            strides,
            activation=None,
            norm=variant.norm,
            name=f'{name}_shortcut',
        )
    return layers.conv(
        preactivated,
        filters,
        1,
        strides,
        bias=variant.bias,
        name=f'{name}_shortcut_conv',
    )


def _block(x, width, expansion, strides, variant, name):
    """One residual block: 1x1, 3x3, 1x1, or two 3x3 where expansion is 1."""
    filters = width * expansion
    norm = variant.norm
    y = x
    if variant.version == 2:
        y = layers.batch_norm(x, name=f'{name}_pre', **variant.pre_norm)
    shortcut = _shortcut(x, y, filters, strides, variant, name)
    if expansion == 1:
        convs = ((width, 3, strides), (filters, 3, 1))
    elif variant.stride_at == 'first':
        convs = ((width, 1, strides), (width, 3, 1), (filters, 1, 1))
    else:
        convs = ((width, 1, 1), (width, 3, strides), (filters, 1, 1))
    *inner, last = convs
    for index, (depth, kernel, stride) in enumerate(inner, 1):
        y = layers.conv_bn(
            y,
            depth,
            kernel,
            stride,
            padding='fixed',
            norm=norm,
            name=f'{name}_{index}',
        )
    depth, kernel, _ = last
    name_of_last = f'{name}_{len(convs)}'
    if variant.version == 2:
        y = layers.conv(
            y, depth, kernel, bias=variant.bias, name=f'{name_of_last}_conv'
        )
        return layers.add((shortcut, y), name=f'{name}_add')
    y = layers.conv_bn(
        y, depth, kernel, activation=None, norm=norm, name=name_of_last
    )
    return layers.add((shortcut, y), activation='relu', name=f'{name}_add')


def _stem(images, variant):
    if variant.stem_norm:
        x = layers.conv_bn(
            images, 64, 7, 2, padding='fixed', norm=variant.norm, name='stem'
        )
    else:
        x = layers.conv(
            images,
            64,
            7,
            2,
            padding='fixed',
            bias=variant.bias,
            name='stem_conv',
        )
    return layers.max_pool(x, 3, 2, 'fixed', name='stem_pool')


def build(images, num_classes, blocks, expansion=4, variant=None):
    """A stem, four stages of residual blocks, the mean, the classifier.

    Weights are He's normal ones (fan in), as both papers have them; the
    classifier's are N(0, 1 / fan in).
    """
    variant = variant or _Variant()
    x = _stem(images, variant)
    for stage, count in enumerate(blocks):
        halving = 0 if variant.stride_at != 'end' else count - 1
        kept = 0 if variant.stride_at != 'end' else len(blocks) - 1
        for index in range(count):
            strides = 2 if index == halving and stage != kept else 1
            x = _block(
                x,
                64 * 2**stage,
                expansion,
                strides,
                variant,
                f'stage{stage + 1}_block{index + 1}',
            )
    if variant.version == 2:
        x = layers.batch_norm(x, name='post', **variant.pre_norm)
    return layers.logits(layers.global_mean(x), num_classes)


_V1 = 'He et al. arXiv 1512.03385, table 1'
_V2 = 'He et al. arXiv 1603.05027'
_V1_5 = f'{_V1}, stride in the 3x3 (Goyal et al. arXiv 1706.02677)'
_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_PLAIN = _Variant()
_PLAIN_V1_5 = _Variant(stride_at='second')
_PLAIN_V2 = _Variant(version=2, pre_scale=False)
_OFFICIAL_V1 = _Variant(stride_at='second', momentum=0.997)
_OFFICIAL_V2 = _Variant(
    version=2, stride_at='second', stem_norm=False, momentum=0.997
)
_SLIM_V1 = _Variant(stride_at='end', momentum=0.997)
_SLIM_V2 = _Variant(
    version=2, stride_at='end', stem_norm=False, bias=0.0, momentum=0.997
)

# Name, depth, variant, batch size, image size, parameters, multiply-adds of
# the convolutions, top-1, top-5, source.
_ROWS = (
    ('resnet50', 50, _PLAIN, 64, 224, 25_557_032, 3_855_925_248,
     75.3, 92.2, f'{_V1}; its authors'),
    ('resnet50_v1.5', 50, _PLAIN_V1_5, 64, 224, 25_557_032, 4_087_136_256,
     76.1, 92.9, f'{_V1_5}; torchvision'),
    ('resnet50_v2', 50, _PLAIN_V2, 64, 224, 25_534_312, 3_855_925_248,
     76.0, 93.0, f'{_V2}; Keras'),
    ('resnet101', 101, _PLAIN, 32, 224, 44_549_160, 7_568_146_432,
     76.4, 92.9, f'{_V1}; its authors'),
    ('resnet101_v2', 101, _PLAIN_V2, 32, 224, 44_509_032, 7_568_146_432,
     77.2, 93.8, f'{_V2}; Keras'),
    ('resnet152', 152, _PLAIN, 32, 224, 60_192_808, 11_280_367_616,
     77.0, 93.3, f'{_V1}; its authors'),
    ('resnet152_v2', 152, _PLAIN_V2, 32, 224, 60_137_320, 11_280_367_616,
     78.0, 94.2, f'{_V2}; Keras'),
    ('official_resnet18', 18, _OFFICIAL_V1, 32, 224, 11_689_512,
     1_813_561_344, None, None, _V1),
    ('official_resnet34', 34, _OFFICIAL_V1, 32, 224, 21_797_672,
     3_663_249_408, None, None, _V1),
    ('official_resnet50', 50, _OFFICIAL_V1, 128, 224, 25_557_032,
     4_087_136_256, 76.1, 92.9, f'{_V1_5}; torchvision'),
    ('official_resnet101', 101, _OFFICIAL_V1, 32, 224, 44_549_160,
     7_799_357_440, 77.374, 93.546, f'{_V1_5}; torchvision'),
    ('official_resnet152', 152, _OFFICIAL_V1, 32, 224, 60_192_808,
     11_511_578_624, 78.312, 94.046, f'{_V1_5}; torchvision'),
    ('official_resnet200', 200, _OFFICIAL_V1, 32, 224, 64_673_832,
     15_005_433_856, None, None, _V1_5),
    ('official_resnet18_v2', 18, _OFFICIAL_V2, 32, 224, 11_687_720,
     1_813_561_344, None, None, _V2),
    ('official_resnet34_v2', 34, _OFFICIAL_V2, 32, 224, 21_795_880,
     3_663_249_408, None, None, _V2),
    ('official_resnet50_v2', 50, _OFFICIAL_V2, 128, 224, 25_549_352,
     4_087_136_256, None, None, _V2),
    ('official_resnet101_v2', 101, _OFFICIAL_V2, 32, 224, 44_541_480,
     7_799_357_440, None, None, _V2),
    ('official_resnet152_v2', 152, _OFFICIAL_V2, 32, 224, 60_185_128,
     11_511_578_624, None, None, _V2),
    ('official_resnet200_v2', 200, _OFFICIAL_V2, 32, 224, 64_666_152,
     15_005_433_856, None, None, _V2),
    ('resnet_v1_50', 50, _SLIM_V1, 64, 224, 25_557_032, 3_480_207_360,
     75.2, 92.2, f'{_V1}, stride at the end; slim'),
    ('resnet_v1_101', 101, _SLIM_V1, 32, 224, 44_549_160, 7_192_428_544,
     76.4, 92.9, f'{_V1}, stride at the end; slim'),
    ('resnet_v1_152', 152, _SLIM_V1, 32, 224, 60_192_808, 10_904_649_728,
     76.8, 93.2, f'{_V1}, stride at the end; slim'),
    ('resnet_v2_50', 50, _SLIM_V2, 64, 224, 25_568_360, 3_480_207_360,
     75.6, 92.8, f'{_V2}, stride at the end; slim'),
    ('resnet_v2_101', 101, _SLIM_V2, 32, 224, 44_577_896, 7_192_428_544,
     77.0, 93.7, f'{_V2}, stride at the end; slim'),
    ('resnet_v2_152', 152, _SLIM_V2, 32, 224, 60_236_904, 10_904_649_728,
     77.8, 94.1, f'{_V2}, stride at the end; slim'),
    ('resnet_v2_50_299', 50, _SLIM_V2, 64, 299, 25_568_360, 6_534_163_200,
     75.6, 92.8, f'{_V2}, stride at the end; slim'),
    ('resnet_v2_101_299', 101, _SLIM_V2, 32, 299, 44_577_896,
     13_371_468_544, 77.0, 93.7, f'{_V2}, stride at the end; slim'),
    ('resnet_v2_152_299', 152, _SLIM_V2, 32, 299, 60_236_904,
     20_208_773_888, 77.8, 94.1, f'{_V2}, stride at the end; slim'),
)  # fmt: skip

# The classifier's multiply-adds.
_DENSE = {4: 2_048_000, 1: 512_000}


def _spec(name, depth, variant, batch, size, parameters, macs, *published):
    top_1, top_5, source = published
    expansion = 1 if depth < 50 else 4
    official = name.startswith('official')
    return ModelSpec(
        name,
        'imagenet',
        functools.partial(
            build,
            blocks=_BLOCKS[depth],
            expansion=expansion,
            variant=variant,
        ),
        image_size=size,
        batch_size=batch,
        learning_rate=0.1 if official else 0.128,
        schedule='official_resnet' if official else 'imagenet_resnet',
        parameters=parameters,
        macs=macs + _DENSE[expansion],
        top_1=top_1,
        top_5=top_5,
        source=source,
    )


SPECS = tuple(_spec(*row) for row in _ROWS)
