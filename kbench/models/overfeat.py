"""OverFeat, the fast network."""

from kbench.models import layers
from kbench.models.spec import ModelSpec

# Width, window, stride, padding, pool behind it.
_CONVOLUTIONS = (
    (96, 11, 4, 'valid', True),
    (256, 5, 1, 'valid', True),
    (512, 3, 1, 'same', False),
    (1024, 3, 1, 'same', False),
    (1024, 3, 1, 'same', True),
)


def build(images, num_classes):
    """Five convolutions, hidden layers of 3072 and 4096.

    Weights N(0, 0.01) and biases 0 are those of section 3.1 of the paper.
    """
    x = images
    for index, row in enumerate(_CONVOLUTIONS, 1):
        filters, kernel, strides, padding, pool = row
        x = layers.conv(
            x,
            filters,
            kernel,
            strides,
            padding,
            bias=0.0,
            activation='relu',
            initializer=0.01,
            name=f'conv{index}',
        )
        if pool:
            x = layers.max_pool(x, 2, 2, name=f'pool{index}')
    x = layers.flatten(x)
    for index, units in ((6, 3072), (7, 4096)):
        x = layers.dense(x, units, initializer=0.01, name=f'dense{index}')
        x = layers.dropout(x, 0.5, name=f'dropout{index}')
    return layers.logits(x, num_classes, initializer=0.01)


SPECS = (
    ModelSpec(
        'overfeat',
        'imagenet',
        build,
        image_size=231,
        batch_size=32,
        learning_rate=0.005,
        parameters=145_920_872,
        macs=2_671_478_784 + 129_925_120,
        source='Sermanet et al. arXiv 1312.6229, table 1',
    ),
)
