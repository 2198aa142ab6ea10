"""VGG: configurations A, D and E."""

import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec


def build(images, num_classes, convolutions):
    """Five stages of 3x3 convolutions, two hidden layers of 4096.

    Weights are Glorot's, as the paper's footnote to section 3.1
    recommends in place of its pre-training.
    """
    x = images
    for stage, count in enumerate(convolutions, 1):
        for index in range(1, count + 1):
            x = layers.conv(
                x,
                min(32 * 2**stage, 512),
                3,
                bias=0.0,
                activation='relu',
                initializer='glorot_uniform',
                name=f'conv{stage}_{index}',
            )
        x = layers.max_pool(x, 2, 2, name=f'pool{stage}')
    x = layers.flatten(x)
    for index in (6, 7):
        x = layers.dense(x, 4096, name=f'dense{index}')
        x = layers.dropout(x, 0.5, name=f'dropout{index}')
    return layers.logits(x, num_classes, initializer='glorot_uniform')


_PAPER = 'Simonyan & Zisserman arXiv 1409.1556, table 1'

# Name, configuration, parameters, multiply-adds of the convolutions, top-1,
# top-5, source.
_ROWS = (
    (
        'vgg11',
        (1, 1, 2, 2, 2),
        132_863_336,
        7_485_456_384,
        69.020,
        88.628,
        f'{_PAPER} A; torchvision',
    ),
    (
        'vgg16',
        (2, 2, 3, 3, 3),
        138_357_544,
        15_346_630_656,
        71.5,
        89.8,
        f'{_PAPER} D; slim',
    ),
    (
        'vgg19',
        (2, 2, 4, 4, 4),
        143_667_240,
        19_508_428_800,
        71.1,
        89.8,
        f'{_PAPER} E; slim',
    ),
)

SPECS = tuple(
    ModelSpec(
        name,
        'imagenet',
        functools.partial(build, convolutions=convolutions),
        image_size=224,
        batch_size=64,
        learning_rate=0.005,
        parameters=parameters,
        macs=macs + 123_633_664,
        top_1=top_1,
        top_5=top_5,
        source=source,
    )
    for name, convolutions, parameters, macs, top_1, top_5, source in _ROWS
)
